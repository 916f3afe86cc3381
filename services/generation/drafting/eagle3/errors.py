"""The error family of EAGLE-3 heads."""


class HeadError(Exception):
    """A head that cannot be loaded; the message says what was found, what was expected and what to do."""


class HeadNotFound(HeadError):
    """The folder, its config.json or its weights are missing."""


class HeadConfigInvalid(HeadError):
    """config.json is not JSON or of no known layout, or a member is missing, unknown, mistyped or out of range."""


class HeadWeightsInvalid(HeadError):
    """The weight file is truncated, or a tensor is missing, unknown, of another shape or dtype, or out of range."""


class HeadForAnotherBase(HeadError):
    """The head's sizes do not fit the base that it is loaded for."""
