"""The page on which wrong labels are fixed, the decisions made there, and what comes of them.

- decisions.py: what a person has decided, durable the moment it is decided
- server.py: the page of a report, served on this machine alone
- corrected.py: the labels after the decisions: a manifest, or a copy of the folder
- exchange.py: to other tools and back
"""
