"""Why a check of a bundle neither passed nor failed."""

from __future__ import annotations


class NothingToCheck(Exception):
    """The message says why."""


class NotReached(Exception):
    """A check that this one needs has failed before."""
