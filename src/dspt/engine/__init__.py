"""Engines do many runs. They know runs and nothing about tables.

- job.py: one run that is to be done, and what became of it
- local.py: does jobs in this process, one after another
- tally.py: says what became of each, and what is left of the whole
- forecast.py: how long they will take
"""
