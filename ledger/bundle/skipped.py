"""Why a check of a bundle neither passed nor failed."""

from __future__ import annotations

NOT_REACHED = "not reached"
"""What a report says of a check that another one has kept from its work."""


class NothingToCheck(Exception):
    """The message says why."""


class NotReached(Exception):
    """A check that this one needs has failed before."""
