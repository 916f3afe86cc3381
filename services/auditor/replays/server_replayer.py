"""Asking a generation service for a replay, with patience: its answer is believed, not checked."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from ledger.documents.sampling import Sampling
from ledger.documents.structured_outputs import StructuredOutputsPart
from ledger.documents.verdict import DECODE, SERVER
from services.auditor.audit_error import CannotReplay, Interrupted, ServiceAway
from services.auditor.comparison import replay_limit
from services.client.errors import Cancelled, DeadlineExceeded, KolmError, ResourceExhausted, Unavailable
from services.client.generation.completion import Replayed
from services.client.generation.request import SamplingParams
from services.client.generation.runtime import Runtime
from services.client.generation.structured_outputs import StructuredOutputs

_log = logging.getLogger(__name__)

_MOMENTARY = (Unavailable, ResourceExhausted, DeadlineExceeded, Cancelled)
"""Errors that pass by themselves: a server restarts, drains or is full."""

_LONGEST_PAUSE = 10.0


class PatientReplayer:
    """`Replayer` on a generation server; waits up to `patience` seconds for one that is away or busy."""

    by = SERVER
    ways: tuple[str, ...] = (DECODE,)

    def __init__(
        self,
        runtime: Runtime,
        patience: float,
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runtime = runtime
        self._patience = patience
        self._stop = stop
        self._clock = clock

    def replay(self, receipt: Receipt, content: Content, way: str = DECODE) -> Replayed:
        """Keeps the contract of Replayer: ServiceAway once patience is used up."""
        give_up, pause = self._clock() + self._patience, 0.1
        while True:
            try:
                return self._ask(receipt, content)
            except _MOMENTARY as error:
                self._pause(error, give_up, min(pause, _LONGEST_PAUSE))
                pause *= 2

    def _pause(self, error: KolmError, give_up: float, pause: float) -> None:
        left = give_up - self._clock()
        if left <= 0 and not self._stop.is_set():
            raise ServiceAway(f"no replay within {self._patience:g} s: {error.message}") from error
        _log.info("no replay yet (%s), asking again", error.message)
        if self._stop.wait(min(pause, max(left, 0.0))):
            raise Interrupted("stopped while waiting for a replay") from error

    def _ask(self, receipt: Receipt, content: Content) -> Replayed:
        return self._runtime.replay(
            content.prompt_token_ids,
            as_requested(receipt.sampling, content.structured_outputs),
            choice=receipt.sampling.choice,
            max_output_tokens=replay_limit(receipt),
            base_cid=receipt.base_cid,
            tokenizer_cid=receipt.tokenizer_cid,
            profile_cid=receipt.profile_cid,
            adapter_cid=receipt.adapter_cid,
        )


def as_requested(sampling: Sampling, constraint: str | None = None) -> SamplingParams:
    """A receipt's sampling parameters as those of a request, every field set. `constraint`: the text it commits to."""
    stated = sampling.structured_outputs
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
        seed=sampling.seed,
        n=sampling.n,
        logit_bias=dict(sampling.logit_bias),
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        ignore_eos=sampling.ignore_eos,
        structured_outputs=None if stated is None else _constraint(stated, constraint or ""),
    )


def _constraint(stated: StructuredOutputsPart, text: str) -> StructuredOutputs:
    try:
        return StructuredOutputs.of(stated.kind, text, stated.engine)
    except ValueError as error:
        raise CannotReplay(f"sampling.structured_outputs: {error}") from error
