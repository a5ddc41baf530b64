"""The paper's tables and figures as data: which runs each is made of, and what was published.

- catalogue.py: the experiments, datasets x noise x variants x seeds; words.py: a noise in words
- paper.py: the paper's own figures (paper.json)
- jobs.py: the runs an experiment is made of, for an engine to do
- collect.py: run folders as the cells of a table
- grid.py: cells in the places of the paper's tables; tables.py, terminal.py, latex.py: such a table as text
- compare.py: methods or folders beside each other, with the tests of significance.py
- figures.py: run folders as figures, of the curves in curves.py; report.py: everything that was run as one HTML page
"""
