"""The one exception that users meet."""


class InputError(ValueError):
    """Bad input: the message is one line that names the option and the accepted range (exit code 2)."""
