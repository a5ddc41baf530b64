"""`python -m dspt` is `dspt`."""

from dspt.cli import main

main()
