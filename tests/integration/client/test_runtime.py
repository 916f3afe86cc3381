"""The generation client against a real server whose answers are scripted."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from services.client import Finished, Request, Runtime, Started
from services.client.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    KolmError,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from tests.integration.runtime.scripted import ScriptedServicer, mount
from tests.serving import serving


@pytest.fixture(scope="module")
def servicer() -> ScriptedServicer:
    return ScriptedServicer()


@pytest.fixture(scope="module")
def runtime(servicer: ScriptedServicer) -> Iterator[Runtime]:
    with serving(mount(servicer)) as served, Runtime.connect(served.address, wait=60) as runtime:
        yield runtime


def test_serve_returns_a_completion(runtime: Runtime) -> None:
    assert runtime.serve("hello").text == "5 characters"
    assert runtime.serve(Request(prompt="hello!")).receipt is None


def test_a_stream_is_started_chunks_finished(runtime: Runtime) -> None:
    with runtime.stream("hello") as events:
        first, last = list(events)
    assert isinstance(first, Started)
    assert isinstance(last, Finished)
    assert last.finish_reason == "stop"


def test_closing_a_stream_cancels_the_request_and_ends_the_iteration(
    runtime: Runtime, servicer: ScriptedServicer
) -> None:
    servicer.closed.clear()
    with runtime.stream(Request(prompt="x", request_id="endless")) as events:
        assert isinstance(next(events), Started)
    assert servicer.closed.wait(timeout=60)
    assert list(events) == []


def test_a_wrong_field_is_named(runtime: Runtime) -> None:
    with pytest.raises(InvalidArgument, match=r"got 1\.5") as caught:
        runtime.serve(Request(prompt="x", request_id="bad field"))
    assert caught.value.fields == ("sampling.top_p",)
    assert caught.value.request_id


def test_an_error_in_the_middle_of_a_stream_is_decoded(runtime: Runtime) -> None:
    with runtime.stream(Request(prompt="x", request_id="full")) as events:
        next(events)
        with pytest.raises(ResourceExhausted) as caught:
            next(events)
    assert caught.value.retry_after == 0.5


def test_a_halt_has_its_reason_and_metadata(runtime: Runtime) -> None:
    with pytest.raises(FailedPrecondition) as caught:
        runtime.serve(Request(prompt="x", request_id="halted"))
    assert (caught.value.reason, caught.value.metadata) == ("SPEC_DECODE_HALTED", {"halt_index": "7"})


def test_a_bug_of_the_server_is_internal_with_a_request_id(runtime: Runtime) -> None:
    with pytest.raises(Internal) as caught:
        runtime.serve(Request(prompt="x", request_id="bug"))
    assert caught.value.request_id
    assert "secret" not in str(caught.value)


def test_a_deadline_ends_a_stream(runtime: Runtime) -> None:
    with (
        runtime.stream(Request(prompt="x", request_id="endless"), timeout=0.2) as events,
        pytest.raises(DeadlineExceeded),
    ):
        list(events)


def test_a_method_the_server_lacks_is_unimplemented(runtime: Runtime) -> None:
    with pytest.raises(Unimplemented):
        runtime.load()


def test_no_server_is_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers there
        with Runtime.connect(f"127.0.0.1:{taken.getsockname()[1]}") as runtime:
            assert not runtime.serving(timeout=1)
            with pytest.raises(KolmError) as caught:
                runtime.model_info(timeout=1)
            assert isinstance(caught.value, Unavailable | DeadlineExceeded)
            with pytest.raises(Unavailable):
                runtime.connection.wait_ready(0.1)


def test_health_is_asked_for_the_service(runtime: Runtime) -> None:
    assert runtime.serving()
