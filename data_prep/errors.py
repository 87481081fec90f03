"""The one exception that a user's mistake raises."""


class InputError(ValueError):
    """Something the user gave, or left lying about, that cannot be worked with.

    The message is one line: what is wrong, where, and the way out. The command line prints it and exits with code 2.
    """
