"""The one exception that users meet."""


class InputError(ValueError):
    """Bad input: the message is one line that names the option and the accepted range (exit code 2)."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))  # what others raised, and is quoted, may have several lines
