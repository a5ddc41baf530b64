"""The paper's tables and figures as data: which runs each is made of, and what was published.

catalogue.py   the experiments: datasets x noise x methods x seeds
paper.py       the paper's own figures (paper.json)
reproduce.py   does the runs an experiment is made of, those that are not done yet
collect.py     run folders as the cells of a table
tables.py      cells as a table: terminal, Markdown, LaTeX, CSV
figures.py     run folders as figures: PDF and PNG
report.py      everything that was run as one HTML page
"""
