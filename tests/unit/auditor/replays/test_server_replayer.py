"""Patience with a generation service that is away, and what is asked of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ledger.documents.receipt import Receipt
from ledger.documents.sampling import Sampling
from ledger.encoding.cid import cid
from services.auditor.audit_error import Interrupted, ServiceAway
from services.auditor.replays.server_replayer import PatientReplayer, as_requested
from services.client import Runtime
from services.client.errors import Cancelled, FailedPrecondition, KolmError, ResourceExhausted, Unavailable
from services.client.generation.completion import Replayed
from tests.unit.ledger.builders import content, receipt

STREAM = Replayed((1,), "stop", "sha256:" + 64 * "0", "profile", 0.0, (0.5,))


class FlakyRuntime(Runtime):
    """Fails a number of times before it answers."""

    def __init__(self, *failures: KolmError) -> None:
        self._failures = list(failures)
        self.asked: list[dict[str, Any]] = []

    def replay(self, prompt_token_ids: Any, sampling: Any, **named: Any) -> Replayed:
        self.asked.append({"prompt": tuple(prompt_token_ids), "sampling": sampling, **named})
        if self._failures:
            raise self._failures.pop(0)
        return STREAM


class Clock:
    """Every look at it is a second later."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class Hurried(threading.Event):
    """Waits for nothing."""

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


def replayer(runtime: Runtime, patience: float = 100.0, stop: threading.Event | None = None) -> PatientReplayer:
    return PatientReplayer(runtime, patience, stop or Hurried(), Clock())


def test_a_service_that_comes_back_is_asked_again() -> None:
    runtime = FlakyRuntime(Unavailable("away"), ResourceExhausted("full"), Cancelled("stopping"))
    assert replayer(runtime).replay(receipt(), content()) is STREAM
    assert len(runtime.asked) == 4


def test_patience_ends() -> None:
    runtime = FlakyRuntime(*(Unavailable("away") for _ in range(1000)))
    with pytest.raises(ServiceAway, match="no replay within 5 s: away"):
        replayer(runtime, patience=5.0).replay(receipt(), content())


def test_a_stop_ends_the_waiting() -> None:
    stop = Hurried()
    stop.set()
    with pytest.raises(Interrupted):
        replayer(FlakyRuntime(Unavailable("away")), stop=stop).replay(receipt(), content())


def test_a_refusal_is_not_asked_about_again() -> None:
    runtime = FlakyRuntime(FailedPrecondition("another base"))
    with pytest.raises(FailedPrecondition):
        replayer(runtime).replay(receipt(), content())
    assert len(runtime.asked) == 1


def test_the_request_carries_everything_that_decides_a_token() -> None:
    runtime = FlakyRuntime()
    document: Receipt = receipt(3, adapter_cid=cid(b"adapter"))
    replayer(runtime).replay(document, content(3))
    (asked,) = runtime.asked
    assert asked["prompt"] == content(3).prompt_token_ids
    assert (asked["choice"], asked["max_output_tokens"]) == (document.sampling.choice, 0)
    assert [asked[name] for name in ("base_cid", "tokenizer_cid", "profile_cid", "adapter_cid")] == [
        document.base_cid,
        document.tokenizer_cid,
        document.profile_cid,
        document.adapter_cid,
    ]
    assert asked["sampling"] == as_requested(document.sampling)


def test_no_sampling_parameter_is_lost_or_left_to_a_default() -> None:
    given = Sampling(
        temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, seed=2**60, max_tokens=9, min_tokens=2, stop=("a",),
        stop_token_ids=(4,), ignore_eos=True, presence_penalty=0.1, frequency_penalty=0.2, repetition_penalty=1.1,
        logit_bias=((1, 2.0),), n=3, choice=2,
    )  # fmt: skip
    asked = as_requested(given)
    for name in given.to_document():
        if name == "choice":  # travels beside the sampling parameters
            continue
        value = getattr(asked, name)
        assert value == (dict(given.logit_bias) if name == "logit_bias" else getattr(given, name)), name
