"""Why a check of a bundle neither passed nor failed."""

from __future__ import annotations

NOT_REACHED = "not reached"
"""The words of a report for a check that did not run because another one failed."""


class NothingToCheck(Exception):
    """The message says why."""


class NotReached(Exception):
    """A check that this one needs has failed before."""
