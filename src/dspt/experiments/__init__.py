"""The paper's tables and figures as data: which runs each is made of, and what was published.

- catalogue.py: the experiments, datasets x noise x methods x seeds
- paper.py: the paper's own figures (paper.json)
- reproduce.py: does the runs an experiment is made of, those that are not done yet; estimate.py: how long that takes
- collect.py: run folders as the cells of a table
- layout.py: cells in the places of the paper's tables; tables.py, latex.py: such a table as text
- figures.py: run folders as figures; report.py: everything that was run as one HTML page
"""
