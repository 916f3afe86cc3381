"""The auditor's loop: pass after pass until a stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from services.auditor.audit_error import Interrupted, ScheduleError
from services.auditor.auditor import Auditor, Examined
from services.auditor.backlog import Backlog
from services.client.errors import Cancelled, DeadlineExceeded, InvalidArgument, ResourceExhausted, Unavailable

_log = logging.getLogger(__name__)

_UNTRUSTED = "UNTRUSTED_SIGNATURE"
"""The ledger's answer until a person has said that this auditor's key counts, which may happen at any moment."""

_AWAY = (Unavailable, ResourceExhausted, DeadlineExceeded, Cancelled, ScheduleError)


def follow(
    auditor: Auditor,
    stop: threading.Event,
    poll_seconds: float,
    on_examined: Callable[[Examined], None],
    on_read: Callable[[Backlog], None] = lambda _: None,
) -> None:
    """Audit until `stop` is set. A ledger or schedule that is away is waited for; every other failure ends
    this with its error. `on_read` is told what is left to do each time that the log has been read to its end.
    """
    away = False
    while not stop.is_set():
        try:
            _pass(auditor, stop, on_examined, on_read)
            if away:
                _log.info("going on: nothing has to be waited for any more")
            away = False
        except Interrupted:
            return
        except _AWAY as error:
            if not stop.is_set() and not away:
                _log.warning("waiting for the ledger and the schedule: %s", error)
            away = True
        except InvalidArgument as error:
            if error.reason != _UNTRUSTED:
                raise
            if not away:
                _log.warning("waiting until the ledger trusts this auditor's key (`kolm trust add`): %s", error)
            away = True
        except Exception:
            if stop.is_set():  # the connection of a call was closed
                return
            raise
        stop.wait(poll_seconds)


def _pass(
    auditor: Auditor,
    stop: threading.Event,
    on_examined: Callable[[Examined], None],
    on_read: Callable[[Backlog], None],
) -> None:
    for examined in auditor.run_pass():
        on_examined(examined)
        on_read(auditor.backlog)
        if stop.is_set():
            return
    on_read(auditor.backlog)
