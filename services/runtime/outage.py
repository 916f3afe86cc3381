"""Outages of other services in the log: a line as one begins, a line as it ends."""

from __future__ import annotations

import logging
from types import TracebackType


class Outage:
    """`with outage: ask()` for work that is tried again and again: swallows `errors`, and logs each change of state.

    Used by one thread or task at a time.
    """

    def __init__(self, log: logging.Logger, what: str, *errors: type[Exception]) -> None:
        """`what` cannot be done meanwhile, in words that follow "cannot"."""
        self._log, self._what, self._errors = log, what, errors
        self._goes_on = False

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool:
        if error is not None and not isinstance(error, self._errors):
            return False
        if error is not None and not self._goes_on:
            self._log.warning("cannot %s, tried again until it works: %s", self._what, error)
        if error is None and self._goes_on:
            self._log.info("can %s again", self._what)
        self._goes_on = error is not None
        return True
