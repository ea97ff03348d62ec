"""The errors of the package: each is a `ValueError` whose text is one line."""


class PdeError(ValueError):
    """A value that no Darcy problem can have: says what came, what was expected, what to do."""


class IncompatibleSourceError(PdeError):
    """Without a pressure side the sources must sum to zero, and these do not."""


class FileContentError(PdeError):
    """A file is not what it should be: cut short, of another format, or of other parameters."""
