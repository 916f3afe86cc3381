"""One line as an outage begins, one as it ends, whatever the number of tries between."""

from __future__ import annotations

import logging

import pytest

from services.runtime.process import Outage

LOG = logging.getLogger("test.outage")


def tried(outage: Outage, error: Exception | None) -> None:
    with outage:
        if error is not None:
            raise error


def test_an_outage_is_a_line_as_it_begins_and_a_line_as_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOG.name)
    outage = Outage(LOG, "ask", OSError)
    for error in (None, OSError("a"), OSError("b"), OSError("c"), None, None, OSError("d")):
        tried(outage, error)
    assert [record.getMessage() for record in caplog.records] == [
        "cannot ask, tried again until it works: a", "can ask again", "cannot ask, tried again until it works: d",
    ]  # fmt: skip


def test_a_bug_is_swallowed_where_that_is_asked_for_and_has_its_traceback_in_the_log_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, LOG.name)
    outage = Outage(LOG, "ask", OSError, bugs=True)
    for error in (KeyError("a"), KeyError("b"), None, OSError("c"), KeyError("d"), None):
        tried(outage, error)
    assert [record.exc_info is not None for record in caplog.records] == [True, False, False, False]
    with pytest.raises(KeyboardInterrupt), outage:
        raise KeyboardInterrupt


def test_an_error_that_goes_on_is_told_by_hand(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOG.name)
    outage = Outage(LOG, "ask")
    for error in (OSError("a"), OSError("b")):
        outage.failed(error)
    outage.works()
    outage.works()
    assert len(caplog.records) == 2


def test_an_error_of_another_kind_is_not_swallowed() -> None:
    with pytest.raises(KeyError):
        tried(Outage(LOG, "ask", OSError), KeyError())
