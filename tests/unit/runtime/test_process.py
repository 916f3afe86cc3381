"""Parts that composition roots share: draining, listening, logs, outages, reasons."""

import asyncio
import json
import logging
import socket
from typing import Any

import pytest

from services.runtime.calls import current_request_id, request_id_from
from services.runtime.listening import CannotListen, check_free, is_loopback
from services.runtime.process import JsonFormatter, Outage, TextFormatter
from services.runtime.server import _drain


class _Held:
    """A server with a call that ends only when it is cut off."""

    def __init__(self) -> None:
        self.graces: list[float | None] = []
        self._cut_off = asyncio.Event()

    async def drain(self) -> None:
        pass

    async def stop(self, grace: float | None) -> None:
        self.graces.append(grace)
        if grace is None:
            self._cut_off.set()
        await asyncio.wait_for(self._cut_off.wait(), grace)


async def test_grpcs_own_grace_never_runs_out_beside_the_stop_that_cuts_the_last_calls_off() -> None:
    server: Any = _Held()
    await _drain(server, 0.01, asyncio.Queue(), lambda: None, None)
    longest, cut_off = server.graces
    assert cut_off is None
    assert longest > 3600


def test_a_port_that_is_free_stays_free_and_one_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"127.0.0.1:{port}: "):
            check_free(f"127.0.0.1:{port}")
    check_free(f"127.0.0.1:{port}")
    check_free(f"127.0.0.1:{port}")
    check_free("127.0.0.1:0")


@pytest.mark.parametrize("address", ["192.0.2.1:50051", "no.such.host.invalid:50051"])
def test_an_address_of_another_machine_is_said_to_be(address: str) -> None:
    with pytest.raises(CannotListen, match=address):
        check_free(address)


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "192.0.2.1"), (socket.AF_UNSPEC, "no IPv6")])
def test_a_name_is_free_if_this_machine_has_one_of_its_addresses(
    monkeypatch: pytest.MonkeyPatch, family: socket.AddressFamily, host: str
) -> None:
    places = [
        (family, socket.SOCK_STREAM, 0, "", (host, 50051)),
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_named: places)
    check_free("localhost:50051")
    places.pop()
    with pytest.raises(CannotListen):
        check_free("localhost:50051")


@pytest.mark.parametrize(
    ("host", "stays"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("[::]", False),
        ("192.168.1.2", False),
        ("localhost.example", False),
    ],
)
def test_only_loopback_addresses_stay_on_this_machine(host: str, stays: bool) -> None:
    assert is_loopback(host) is stays


def _record(message: str = "appended", **event: object) -> logging.LogRecord:
    record = logging.LogRecord("services.ledger", logging.INFO, __file__, 1, message, (), None)
    record.event = event
    return record


def test_json_lines_hold_message_fields_and_the_request_being_served() -> None:
    token = current_request_id.set("r7")
    try:
        line = json.loads(JsonFormatter("ledger").format(_record(index=3)))
    finally:
        current_request_id.reset(token)
    assert (line["message"], line["index"], line["request_id"], line["level"]) == ("appended", 3, "r7", "INFO")


def test_a_callers_request_id_is_used_only_where_it_cannot_break_a_log_line() -> None:
    assert request_id_from([("kolm-request-id", "job-1/7")]) == "job-1/7"
    for bad in ("", "two\nlines", "x" * 129, "späte"):
        assert request_id_from([("kolm-request-id", bad)]) != bad
    assert request_id_from([]) != request_id_from([])


def test_a_callers_words_cannot_begin_a_field_of_a_text_line() -> None:
    line = TextFormatter().format(_record(tenant="a b\nc=1", index=3))
    assert line.endswith('tenant="a b\\nc=1" index=3')


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
    outage.recovered()
    outage.recovered()
    assert len(caplog.records) == 2
