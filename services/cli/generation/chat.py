"""`kolm chat`: a conversation with a receipt for every answer."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from ledger.bundle.conversation import Transcript, Turn
from ledger.log.receipt_filter import ReceiptFilter
from services.cli.frame import options
from services.cli.frame.exits import Failed, UsageError
from services.cli.frame.failures import explain, explained, of_server
from services.cli.frame.options import ledger_at
from services.cli.frame.output import json_text, remark
from services.cli.frame.process import awaited, print_error, unless_interrupted, until_interrupted
from services.cli.frame.values import expect_parent
from services.cli.frame.views import Styled
from services.cli.generation.generate import receipt_document, speed, text_writer
from services.cli.generation.request_options import RequestOptions
from services.cli.ledger.export import BundleRequest, check_new, export_bundle_to
from services.client.errors import InvalidArgument, NotFound, PermissionDenied, Unauthenticated
from services.client.generation.completion import Chunk, Finished
from services.client.generation.request import Message, Request, SpecDecodeConfig
from services.client.generation.runtime import Runtime
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.log import ReceiptEntry

if TYPE_CHECKING:
    from collections.abc import Iterator


_COMMANDS = "/method NAME, /save FILE, /help, /quit"

_LONG_ANSWER = 512
"""Default of --max-tokens here; the server's own default is meant for completions."""
_TEMPLATE_TOKENS = 64
"""Bound of the tokens that a chat template adds to a message."""
_PATIENCE = 10.0  # seconds to wait for a receipt in the ledger
_NO_CONTENT = (
    "the content of the receipts, which the ledger gives to auditors and to the tenant's own token: without it the "
    "texts cannot be checked against the receipts"
)


def chat(
    asked: RequestOptions,
    system: Annotated[str | None, Option("--system", help="A system message.")] = None,
    save: Annotated[
        Path | None,
        Option(
            "--save",
            metavar="FILE",
            help="At the end, write the conversation with its receipts: a new folder, .tar.gz or .tar.",
        ),
    ] = None,
    generation: options.Generation = options.GENERATION,
    ledger: options.Ledger = options.LEDGER,
    registry: options.Registry = options.REGISTRY,
    json: options.Json = False,
) -> None:
    """Talk with the model; every answer has a signed receipt. Piped input gets one answer for each line. Lines that
    begin with a slash are commands: /method NAME, /save FILE, /help, /quit. A line that begins with // is sent with
    one slash.
    """
    if save is not None:
        expect_parent("--save", save)
        check_new("--save", save)
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not json
    with Runtime.connect(generation) as runtime:
        conversation = Conversation(runtime, asked.request(), asked.spec_decode(), asked.timeout, system)
        if interactive:
            remark(Styled(f"{conversation.model}. {_COMMANDS}. Ctrl-D leaves.", "dim"))
        try:
            for line in _typed() if interactive else _piped():
                if line == "/quit":
                    break
                try:
                    _take(line, conversation, (ledger, registry), interactive=interactive, as_json=json)
                except Exception as error:
                    if not interactive:
                        raise
                    explain(error)
                except KeyboardInterrupt:
                    if not interactive:
                        raise
                    print_error("\ninterrupted")
        finally:
            if save is not None and conversation.turns:
                _save(conversation, save, (ledger, registry))


def _typed() -> Iterator[str]:
    """Lines from a terminal until Ctrl-D; no history is kept on disk, because lines may be private."""
    with suppress(ImportError):  # not on Windows
        import readline  # noqa: F401  (which edits the lines of input())
    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            return print()
        except KeyboardInterrupt:
            print_error("\n/quit or Ctrl-D leaves")
        except UnicodeDecodeError:
            print_error("kolm: the line is not UTF-8, and was not sent")


def _piped() -> Iterator[str]:
    """Lines of standard input. Raises UsageError for bytes that are not UTF-8."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            problem = f"line {number} is not UTF-8: byte 0x{line[error.start]:02x}"
            raise UsageError(f"standard input: {problem}") from None
        yield text.strip()


def _take(line: str, conversation: Conversation, places: tuple[str, str], *, interactive: bool, as_json: bool) -> None:
    """Run the command in a line, or send it. Raises UsageError for an unknown command."""
    match line.split(maxsplit=1):
        case []:
            return
        case ["/help"]:
            remark(f"{_COMMANDS}. A line that begins with // is sent with one slash.")
        case ["/method", name]:
            conversation.use(name)
        case ["/save", name]:
            _save(conversation, _expanded(name), places)
        case ["/method" | "/save" as word]:
            raise UsageError(f"{word}: expected a name after it")
        case [word, *_] if word.startswith("/") and not word.startswith("//"):
            raise UsageError(f"{word}: expected {_COMMANDS}", "a line that begins with // is sent with one slash")
        case _:
            question = line[1:] if line.startswith("//") else line
            _ask(question, conversation, interactive=interactive, as_json=as_json)


def _expanded(name: str) -> Path:
    """The path, with a home folder in place of `~`. Raises UsageError."""
    try:
        return Path(name).expanduser()
    except RuntimeError:  # no such user, or a user without a home
        raise UsageError(f"/save: {name}: there is no such home folder; name it without ~") from None


def _ask(question: str, conversation: Conversation, *, interactive: bool, as_json: bool) -> None:
    write = text_writer()
    answer = conversation.ask(question, (lambda text: None) if as_json else write)
    if not as_json and (answer.turn.answer or answer.finished is not None):
        write("\n")
    if answer.finished is None and not interactive:
        raise KeyboardInterrupt
    if as_json:
        write(f"{json_text(answer.document())}\n")
    else:
        remark(*(Styled(line, "dim") for line in (answer_line(answer), conversation.hint(answer)) if line is not None))


def _save(conversation: Conversation, path: Path, places: tuple[str, str]) -> None:
    for lacking in conversation.save(path, *places):
        remark((Styled(f"not in {path}:", "yellow"), f" {lacking}"))
    remark(Styled(f"saved; check it with: kolm verify {path} --model MODEL", "dim"))


@dataclass(frozen=True, slots=True)
class Asked:
    """One turn. `answer` is the shown text, the beginning of an interrupted answer.

    `receipt_id` is None while only the ledger knows it, under `request_id`. `tokens` counts prompt and answer together,
    None if they are not known.
    """

    question: str
    answer: str
    request_id: str
    interrupted: bool
    receipt_id: str | None
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, which took `seconds`. `finished` is None if it was interrupted; `tokens` are the answer's."""

    turn: Asked
    tokens: int
    seconds: float
    finished: Finished | None

    def document(self) -> dict[str, Any]:
        """An interrupted answer has neither receipt nor metrics."""
        finished = self.finished
        return {
            "text": self.turn.answer,
            "tokens": self.tokens,
            "finish_reason": finished and finished.finish_reason,
            "request_id": self.turn.request_id,
            "usage": finished and asdict(finished.usage) | {"total_tokens": finished.usage.total_tokens},
            "metrics": finished and asdict(finished.metrics),
            "receipt": finished and receipt_document(finished.receipt),
            "ledger_index": finished and finished.receipt and finished.receipt.ledger_index,
        }


class Conversation:
    """Turns in order, and the service that answers. Every prompt has all turns."""

    def __init__(
        self, runtime: Runtime, asked: Request, spec_decode: SpecDecodeConfig, timeout: float, system: str | None
    ) -> None:
        """`asked` is a request without its prompt. Raises KolmError."""
        self.turns: list[Asked] = []
        self._runtime = runtime
        self._asked = asked
        self._spec_decode = spec_decode
        self._timeout = timeout
        self._system = system
        self._info = runtime.model_info()
        self._name = uuid.uuid4().hex[:12]
        self._requests = 0
        self._explained: set[str] = set()

    @property
    def model(self) -> str:
        return self._info.model

    def use(self, method: str) -> None:
        """Use a method from now on, without the parameters of the former one. Raises UsageError."""
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
            hint = "a conversation is sent as a whole: begin another, or start `kolm up` with a larger --context-length"
            raise UsageError(of_server(error).message, hint) from error
        receipt = None if finished is None else finished.receipt
        turn = Asked(
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

    def hint(self, answer: Answer) -> str | None:
        """The line that explains the answer's fallback; None without one, and once it was explained."""
        reason = None if answer.finished is None else answer.finished.metrics.fallback_reason
        if reason is None or reason in self._explained:
            return None
        self._explained.add(reason)
        return explained(reason)

    def save(self, path: Path, ledger: str, registry: str) -> tuple[str, ...]:
        """Write a bundle with every turn; returns a description of each missing part.

        Raises UsageError for a conversation without turns and for an existing path, KolmError, Failed.
        """
        if not self.turns:
            raise UsageError("there is no answer yet that could be saved")
        check_new("/save", path)
        with ledger_at(ledger) as client:

            def found() -> list[Asked]:
                return [replace(turn, receipt_id=_receipt_of(client, turn).receipt_id) for turn in self.turns]

            self.turns = unless_interrupted(found, client.close)
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
        """A bound of the prompt's tokens: one for each byte of uncounted texts."""
        counted = self.turns[-1].tokens if self.turns else None
        new = messages if counted is None else messages[-1:]
        return (counted or 0) + sum(len(each.content.encode()) + _TEMPLATE_TOKENS for each in new)


def _check_whole(finished: Finished | None) -> None:
    """Raises Failed for an answer that the server ended early."""
    if finished is None:
        raise Failed("the stream ended before the answer did")
    if finished.finish_reason not in ("stop", "length"):
        raise Failed(f"the server ended the answer early ({finished.finish_reason})", "ask again")


def _receipt_of(ledger: LedgerClient, turn: Asked) -> ReceiptEntry:
    """The receipt of a turn, waiting until the ledger has it. Raises Failed, KolmError."""
    if (found := awaited(lambda: _found(ledger, turn), _PATIENCE)) is not None:
        return found
    raise Failed(
        f"the ledger has no receipt of the request {turn.request_id} after {_PATIENCE:g} s",
        "`kolm status` shows whether the ledger answers; receipts wait for it with the generation service",
    )


def _found(ledger: LedgerClient, turn: Asked) -> ReceiptEntry | None:
    if turn.receipt_id is None:
        return next(ledger.receipts(ReceiptFilter(request_id=turn.request_id)), None)
    try:
        return ledger.receipt(turn.receipt_id).receipt
    except NotFound:
        return None


def answer_line(answer: Answer) -> str:
    """One line about an answer, with its receipt's entry in the ledger if that is known."""
    finished = answer.finished
    if finished is None:
        kept = "receipt on its way" if answer.turn.answer else "the question is not kept"
        return f"interrupted after {answer.tokens} tokens, {kept}"
    signed, metrics = finished.receipt, finished.metrics
    entry = None if signed is None else signed.ledger_index
    parts = [speed(finished.usage.completion_tokens, metrics, answer.seconds)]
    if metrics.num_draft_tokens:
        parts.append(f"{metrics.mean_acceptance_length:.2f} tokens a pass")
    asked = f" ({metrics.requested_method}: {metrics.fallback_reason})" if metrics.fallback_reason else ""
    parts.append(f"{metrics.method}{asked}")
    parts.append("no receipt" if signed is None else "receipt on its way" if entry is None else f"receipt {entry}")
    return ", ".join([*parts, *(["cut off here"] if finished.finish_reason == "length" else [])])
