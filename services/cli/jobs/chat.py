"""A conversation: each question goes with all that was said before it, and all of it can be kept with its receipts."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ledger.bundle.transcript import Transcript, Turn
from services.cli.failures.exits import Failed, UsageError
from services.cli.failures.server_failure import of_server
from services.cli.jobs.interruption import until_interrupted
from services.cli.jobs.ledger.bundle_export import BundleRequest, check_new, export_bundle_to
from services.client import Chunk, Finished, LedgerClient, Message, Request, Runtime, SpecDecodeConfig
from services.client.errors import InvalidArgument, NotFound, PermissionDenied, Unauthenticated
from services.client.ledger.log import ReceiptEntry

_LONG_ANSWER = 512
"""Tokens of an answer where nothing else was asked for; the server's own default is meant for completions."""
_TEMPLATE_TOKENS = 64
"""More than a chat template adds to a message."""
_PATIENCE, _PAUSE = 10.0, 0.05
"""Seconds to wait for a receipt in the ledger, and between two looks."""
_NO_CONTENT = (
    "what the receipts commit to, which the ledger gives to auditors and to the tenant's own token: without it nobody "
    "can hold the texts against the receipts"
)


@dataclass(frozen=True, slots=True)
class Said:
    """One turn. `answer` is what was shown, of an interrupted answer the beginning.

    `receipt_id` is None while only the ledger knows it, under `request_id`. `tokens` are those of prompt and answer
    together, None if they are not known.
    """

    question: str
    answer: str
    request_id: str
    interrupted: bool
    receipt_id: str | None
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it came, in `seconds`. `finished` is None if it was interrupted; `tokens` are the answer's."""

    turn: Said
    tokens: int
    seconds: float
    finished: Finished | None


class Conversation:
    """Turns in order, and the service that answers. Nothing is left out of a prompt."""

    def __init__(
        self, runtime: Runtime, asked: Request, spec_decode: SpecDecodeConfig, timeout: float, system: str | None
    ) -> None:
        """`asked` carries everything but the prompt. Raises KolmError."""
        self.turns: list[Said] = []
        self._runtime = runtime
        self._asked = asked
        self._spec_decode = spec_decode
        self._timeout = timeout
        self._system = system
        self._info = runtime.model_info()
        self._name = uuid.uuid4().hex[:12]
        self._requests = 0

    @property
    def model(self) -> str:
        return self._info.model

    def use(self, method: str) -> None:
        """Ask for a method from now on, without the parameters of the former one. Raises UsageError."""
        known = dict.fromkeys(("auto", "off", *self._info.methods))
        if method not in known:
            raise UsageError(f"/method: this server has {', '.join(known)}, not {method}")
        self._spec_decode = SpecDecodeConfig(method=method, verify=self._spec_decode.verify)

    def ask(self, question: str, write: Callable[[str], None]) -> Answer:
        """Send the conversation with `question`; writes the answer as it comes.

        Ctrl-C cancels the request: what was written stays in the conversation, if anything was. Raises KolmError,
        Failed, UsageError; the conversation is then as it was.
        """
        self._requests += 1
        request = self._request(question, f"chat-{self._name}-{self._requests}")
        shown, tokens = "", 0
        started = time.monotonic()
        finished: Finished | None = None
        try:
            events = self._runtime.stream(request, spec_decode=self._spec_decode, timeout=self._timeout)
            for event in until_interrupted(events):
                if isinstance(event, Chunk):
                    shown, tokens = shown + event.text, tokens + len(event.token_ids)
                    write(event.text)
                elif isinstance(event, Finished):
                    finished = event
            _check_whole(finished)
        except KeyboardInterrupt:
            pass
        except InvalidArgument as error:
            if error.fields != ("messages",) or error.reason != "CONTEXT_LENGTH_EXCEEDED":
                raise
            hint = "nothing is left out of a conversation: begin another, or `kolm up --context-length` makes room"
            raise UsageError(of_server(error).message, hint) from error
        receipt = None if finished is None else finished.receipt
        turn = Said(
            question,
            shown,
            request.request_id,
            interrupted=finished is None,
            receipt_id=None if receipt is None else receipt.receipt_id,
            tokens=None if finished is None else finished.usage.total_tokens,
        )
        if shown or finished is not None:
            self.turns.append(turn)
        return Answer(turn, tokens, time.monotonic() - started, finished)

    def save(self, path: Path, ledger: str, registry: str) -> tuple[str, ...]:
        """Write a bundle with every turn; returns, in words, what it lacks.

        Raises UsageError for a conversation without turns and a path that is taken, KolmError, Failed.
        """
        if not self.turns:
            raise UsageError("nothing was said yet that could be saved")
        check_new(path)
        with LedgerClient.connect(ledger) as client:
            self.turns = [replace(turn, receipt_id=_receipt_of(client, turn).receipt_id) for turn in self.turns]
        turns = tuple(
            Turn(turn.question, turn.answer, turn.receipt_id or "", before, turn.interrupted)
            for before, turn in enumerate(self.turns)
        )
        receipts = tuple(turn.receipt_id for turn in turns)
        transcript = Transcript(self._system, turns).to_bytes()
        try:
            return export_bundle_to(
                path, ledger, registry, BundleRequest(receipts, content=True, transcript=transcript)
            )
        except (PermissionDenied, Unauthenticated):
            wanted = BundleRequest(receipts, transcript=transcript)
            return (_NO_CONTENT, *export_bundle_to(path, ledger, registry, wanted))

    def _request(self, question: str, request_id: str) -> Request:
        messages = [] if self._system is None else [Message("system", self._system)]
        for turn in self.turns:
            messages += [Message("user", turn.question), Message("assistant", turn.answer)]
        messages.append(Message("user", question))
        sampling = self._asked.params
        if sampling.max_tokens is None and self._bound(messages) + _LONG_ANSWER <= self._info.context_length:
            sampling = replace(sampling, max_tokens=_LONG_ANSWER)
        return replace(self._asked, messages=messages, sampling=sampling, request_id=request_id)

    def _bound(self, messages: list[Message]) -> int:
        """A number of tokens that this prompt stays under: a token for each byte where they were not counted."""
        counted = self.turns[-1].tokens if self.turns else None
        new = messages if counted is None else messages[-1:]
        return (counted or 0) + sum(len(each.content.encode()) + _TEMPLATE_TOKENS for each in new)


def _check_whole(finished: Finished | None) -> None:
    """Raises Failed for an answer that the server ended early."""
    if finished is None:
        raise Failed("the stream ended before the answer did")
    if finished.finish_reason not in ("stop", "length"):
        raise Failed(f"the server ended the answer early ({finished.finish_reason})", "ask again")


def _receipt_of(ledger: LedgerClient, turn: Said) -> ReceiptEntry:
    """The receipt of a turn, waiting until the ledger has it. Raises Failed, KolmError."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        found = _found(ledger, turn)
        if found is not None:
            return found
        time.sleep(_PAUSE)
    raise Failed(
        f"the ledger has no receipt of the request {turn.request_id} after {_PATIENCE:g} s",
        "`kolm status` shows whether the ledger answers; receipts wait for it with the generation service",
    )


def _found(ledger: LedgerClient, turn: Said) -> ReceiptEntry | None:
    if turn.receipt_id is None:
        return next(ledger.receipts(request_id=turn.request_id), None)
    try:
        return ledger.receipt(turn.receipt_id).receipt
    except NotFound:
        return None
