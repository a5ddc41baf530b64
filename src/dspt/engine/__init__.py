"""Engines do many runs. They know runs and nothing about tables.

- job.py: one run that is to be done, what became of it, and which is next
- attempt.py: one try of a job, wherever it is made; encoding once what all of them read
- team.py: workers wherever they are, and a bounded number of things under way with them
- many.py: does several jobs at a time with a team
- local.py: does jobs on this machine, in this process or in several (processes.py)
- cluster.py: does jobs on Ray, on this machine or on many
- spreading.py: work on parts that a team does: encoding images, passes over rows
- sweep.py: the plan of many jobs, beside their runs
- status.py: how far runs are, asked of their folders
- tally.py: says what became of each, and what is left of the whole
- forecast.py: how long they will take

An engine is a function `do(jobs, root, reporter, ...)` that yields an `Outcome` for each job, in whatever order.
"""
