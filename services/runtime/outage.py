"""Outages of other services in the log: a line as one begins, a line as it ends."""

from __future__ import annotations

import logging
from types import TracebackType


class Outage:
    """`with outage: ask()` for work that is tried again and again: swallows `errors`, and logs each change of state.

    Where the error has to go on, `failed` and `works` tell it. Two threads at once may cost a line too many.
    """

    def __init__(self, log: logging.Logger, what: str, *errors: type[Exception], bugs: bool = False) -> None:
        """`what` cannot be done meanwhile, in words that follow "cannot". `bugs` swallows every other error, too; the
        line has its traceback then.
        """
        self._log, self._what, self._errors, self._bugs = log, what, errors, bugs
        self._goes_on = False

    def failed(self, error: Exception, traceback: Exception | None = None) -> None:
        """Once more. `traceback` goes into the log where this is the first time."""
        if not self._goes_on:
            self._log.warning("cannot %s, tried again until it works: %s", self._what, error, exc_info=traceback)
        self._goes_on = True

    def works(self) -> None:
        """It does, perhaps again."""
        if self._goes_on:
            self._log.info("can %s again", self._what)
        self._goes_on = False

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool:
        if error is None:
            self.works()
        elif isinstance(error, self._errors):
            self.failed(error)
        elif self._bugs and isinstance(error, Exception):
            self.failed(error, traceback=error)
        else:
            return False
        return True
