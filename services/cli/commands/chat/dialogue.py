"""The loop of `kolm chat`: a line is a question or a command."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.markup import escape

from services.cli.failures.exits import CommandError, UsageError
from services.cli.failures.failure import explain
from services.cli.failures.server_failure import of_server
from services.cli.jobs.chat.receipts import receipt_of
from services.cli.jobs.chat.session import Answer, Session
from services.cli.jobs.chat.transcript_export import Sources, save
from services.cli.jobs.receipts.receipt_proof import find, prove
from services.cli.terminal.output import data, print_json, talk
from services.cli.views.generation.chat import answer_json, answer_line, help_view, wishes_line
from services.cli.views.generation.completion import text_writer
from services.cli.views.generation.wrapped_text import WrappedText
from services.cli.views.receipts.receipts import receipt_view
from services.client import LedgerClient
from services.client.errors import InvalidArgument, KolmError

COMMANDS = {
    "/method": ("NAME", "auto, off or a method of the server for the answers to come; the text stays the same"),
    "/seed": ("NUMBER", "the seed of the answers to come; - lets the server draw one for each"),
    "/receipt": ("", "the receipt of the last answer: its signed fields, and whether the ledger holds it"),
    "/save": ("FILE", "the conversation with its receipts, for kolm verify: a folder, .tar.gz, .tar or .zip"),
    "/drop": ("", "the prompts to come leave out the oldest question and its answer"),
    "/new": ("", "the prompts to come leave out everything that was said"),
    "/help": ("", "this list"),
    "/quit": ("", "leaves; so does Ctrl-D. Ctrl-C stops an answer"),
}
"""Each with the word that it takes and its meaning."""

_FULL = (
    "nothing was left out of the conversation: /drop leaves out its oldest question and answer, /new everything; "
    "`kolm up --context-length` makes room"
)


@dataclass(frozen=True, slots=True)
class Terms:
    """How the conversation is shown and what it can be checked with. `interactive` survives errors and Ctrl-C."""

    interactive: bool
    as_json: bool
    methods: tuple[str, ...]
    trusted: Path
    sources: Sources


class Dialogue:
    """A session with somebody who types, or with a program."""

    def __init__(self, session: Session, terms: Terms) -> None:
        self._session = session
        self._terms = terms
        self._actions: dict[str, Callable[[str], None]] = {
            "/method": self._set_method,
            "/seed": self._set_seed,
            "/receipt": self._show_receipt,
            "/save": self._save,
            "/drop": self._drop,
            "/new": self._start_anew,
            "/help": self._help,
        }

    def run(self, lines: Iterable[str]) -> None:
        """Until the lines end, or one of them is /quit. Raises what a line raises, unless it is interactive."""
        for line in lines:
            word = line.strip()
            if word == "/quit":
                return
            if word:
                self._survive(partial(self._take, word))

    def save(self, path: Path) -> None:
        """Write the conversation with its receipts. Raises KolmError, Failed, UsageError."""
        for lacking in save(self._session.conversation, path, self._terms.sources):
            talk().print(f"[yellow]not in {escape(str(path))}:[/] {escape(lacking)}", soft_wrap=True)
        talk().print(f"[dim]{escape(f'saved; check it with: kolm verify {path} --model MODEL')}[/]", soft_wrap=True)

    def interrupted(self) -> None:
        """Say how to leave, to somebody who presses Ctrl-C where nothing runs."""
        self._note("Ctrl-D or /quit leaves")

    def _survive(self, act: Callable[[], None]) -> None:
        try:
            act()
        except KeyboardInterrupt:
            if not self._terms.interactive:
                raise
            self._note("stopped")
        except Exception as error:
            if not self._terms.interactive:
                raise
            explain(error)

    def _take(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        if line.startswith("//"):
            self._ask(line[1:])
        elif not line.startswith("/"):
            self._ask(line)
        elif name in self._actions:
            self._actions[name](argument.strip())
        else:
            raise UsageError(f"{name}: no such command", "/help lists them; // begins a question with a slash")

    def _ask(self, question: str) -> None:
        write = _discard if self._terms.as_json else text_writer()
        if self._terms.interactive:
            write = WrappedText(write, lambda: data().width)
        try:
            answer = self._session.ask(question, write)
        except InvalidArgument as error:
            raise _overflow(error) from error
        self._finish(answer, write)

    def _finish(self, answer: Answer, write: Callable[[str], None]) -> None:
        if answer.turn.answer or answer.finished is not None:
            write("\n")
        if answer.finished is None and not self._terms.interactive:
            raise KeyboardInterrupt
        if self._terms.as_json:
            print_json(answer_json(answer))
        elif answer.finished is None and not answer.turn.answer:
            self._note("interrupted before the first word: the question is not kept")
        else:
            self._note(answer_line(answer, self._entry(answer)))

    def _entry(self, answer: Answer) -> int | None:
        """Where the receipt stands; of an interrupted answer the ledger alone can say."""
        if answer.finished is not None:
            receipt = answer.finished.receipt
            return None if receipt is None else receipt.ledger_index
        try:
            with LedgerClient.connect(self._terms.sources.ledger) as ledger:
                return receipt_of(ledger, answer.turn).index
        except (KolmError, CommandError):
            return None

    def _set_method(self, name: str) -> None:
        known = ("auto", *self._terms.methods)
        if name and name not in known:
            raise UsageError(f"/method: this server has {', '.join(known)}, not {name}")
        if name:
            self._session.wishes = self._session.wishes.with_method(name)
        self._note(wishes_line(self._session))

    def _set_seed(self, word: str) -> None:
        if word and word != "-" and not word.isdecimal():
            raise UsageError(f"/seed: expected a whole number, or - for one that the server draws, got {word}")
        if word:
            self._session.wishes = self._session.wishes.with_seed(None if word == "-" else int(word))
        self._note(wishes_line(self._session))

    def _show_receipt(self, _: str) -> None:
        turns = self._session.conversation.turns
        if not turns:
            raise UsageError("/receipt: nothing was answered yet")
        with LedgerClient.connect(self._terms.sources.ledger) as ledger:
            details = find(ledger, receipt_of(ledger, turns[-1]).receipt_id)
            proof = prove(details, self._terms.trusted)
        (talk() if self._terms.as_json else data()).print(receipt_view(details, proof))

    def _save(self, name: str) -> None:
        if not name:
            raise UsageError("/save: expected the name of a new file or folder", "try: /save chat.tar.gz")
        self.save(Path(name).expanduser())

    def _drop(self, _: str) -> None:
        dropped = self._session.conversation.forget_oldest()
        if dropped is None:
            raise UsageError("/drop: the next prompt begins afresh already")
        left = self._session.conversation.remembered
        self._note(f"left out from now on: {dropped.question[:60]!r}; {left} questions are repeated")

    def _start_anew(self, _: str) -> None:
        self._session.conversation.forget_all()
        self._note("a new conversation; /save still keeps all of it")

    def _help(self, _: str) -> None:
        talk().print(help_view((f"{name} {word}".strip(), meaning) for name, (word, meaning) in COMMANDS.items()))

    def _note(self, text: str) -> None:
        talk().print(f"[dim]{escape(text)}[/]", soft_wrap=not self._terms.interactive)


def _overflow(error: InvalidArgument) -> Exception:
    """The error with what to do, where the conversation has become too long for the context."""
    if error.fields != ("messages",) or error.reason != "CONTEXT_LENGTH_EXCEEDED":
        return error
    return UsageError(of_server(error).message, _FULL)


def _discard(text: str) -> None:
    """Programs get an answer whole."""
