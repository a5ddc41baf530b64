"""The one kind of error a user is meant to read."""


class InputError(ValueError):
    """Bad input, told in one sentence: the thing, its value, and what to do.

    The command line prints the sentence and exits with status 2; it never shows a traceback for it.
    """
