"""Which labels are wrong, and what else is the matter with a set of images.

- audit.py: what was found, one row a sample; judge.py: how it is found from features and labels
- pictures.py: what a look at each image tells (tiny, blank, blurred, there twice)
- folder.py: the report folder, its files and how they are read again
- report.py: the page a person reads; page/: its text, style and script
"""

from dspt.auditing.audit import Audit

__all__ = ["Audit"]
