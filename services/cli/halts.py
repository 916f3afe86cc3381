"""`kolm halts`: the scopes that audits have halted, and their resumption, signed by operators."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.documents.halt import Resume, Scope
from ledger.documents.signed_document import add_signature, read_document, sign_document
from ledger.durable_file import write_durably
from ledger.encoding.text_forms import timestamp
from ledger.errors import FormatError, LedgerError
from ledger.keys.envelope import Envelope
from ledger.keys.signer import Signer
from services.cli.frame import exits, options
from services.cli.frame.exits import Failed, UsageError
from services.cli.frame.options import ledger_at
from services.cli.frame.output import answer
from services.cli.frame.views import Column, View, short, table
from services.cli.trust import co_signer, operator_key, operators_needed
from services.client import LedgerClient
from services.client.errors import InvalidArgument
from services.client.ledger.log import Halt

if TYPE_CHECKING:
    from pathlib import Path


def list_(ledger: options.Ledger = options.LEDGER, json: options.Json = False) -> None:
    """List open halts: scopes that are not served with speculation until an operator resumes them. Exit code 3 if there
    is one.
    """
    with ledger_at(ledger) as client:
        state = client.halt_state()
    halts = [
        {
            "halt_index": halt.halt_index,
            "verdict_index": halt.verdict_index,
            "scope": _scope(halt).to_document(),
            "reason": halt.reason,
        }
        for halt in state.halts
    ]
    answer(json, {"epoch": state.epoch, "halts": halts}, _halts_view)  # epoch counts all that there have been
    raise typer.Exit(exits.VERIFICATION_FAILED if state.halts else exits.OK)


def resume(
    halt: Annotated[int | None, typer.Argument(min=0, help="The halt's entry, as `kolm halts list` shows it.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Resume every open halt.")] = False,
    file: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Append the resume that operators have signed in this file.")
    ] = None,
    sign_into: Annotated[
        Path | None,
        typer.Option(
            "--sign-into",
            metavar="FILE",
            dir_okay=False,
            help="Append nothing, add a signature to this file; made for the HALT if missing. Each operator does this.",
        ),
    ] = None,
    reason: Annotated[str, typer.Option(help="The reason; goes into the log.")] = "resumed by an operator",
    ledger: options.Ledger = options.LEDGER,
    paths: options.Paths = options.PATHS,
    key: options.OperatorKey = None,
    key_passphrase_file: options.KeyPassphrase = None,
    json: options.Json = False,
) -> None:
    """Append a resume, signed with the operator's key or by several operators in a file. The generation service
    serves the scope again at once.
    """
    if sign_into is not None:
        if every or file is not None:
            raise UsageError("--sign-into: signs one resume and appends nothing; leave --all and --file out")
        waiting = _signed_into(sign_into, halt, reason, ledger, paths, key, key_passphrase_file)
        needed = operators_needed(paths.trusted)
        document = waiting.document
        what = f"signed the resume of halt {document.halt_index}, {document.scope.method}: {document.reason!r}"
        counts = {"halt_index": document.halt_index, "signatures": waiting.signatures, "needed": needed}
        return answer(json, counts, lambda _: f"{what}; {waiting.signatures} of {needed} signatures")
    if [halt is not None, every, file is not None].count(True) != 1:
        raise UsageError("expected one of the HALT to resume, --all and --file", "`kolm halts list` shows them")
    with ledger_at(ledger) as client:
        if file is not None:
            signed = [read_resume(file)]
        else:
            chosen = open_halts(client, halt)
            keys = paths.trusted
            signing = operator_key(paths.key("operator", key), keys, key_passphrase_file, client)
            signed = [signed_resume(each, signing, reason) for each in chosen]
        resumed = [append_resume(client, each) for each in signed]
    answer(
        json,
        [asdict(each) for each in resumed],
        lambda done: [
            f"resumed {each['method']}: halt {each['halt_index']}, resume is entry {each['resume_index']}"
            for each in done
        ],
    )


def _signed_into(
    path: Path,
    halt: int | None,
    reason: str,
    ledger: str,
    paths: options.Paths,
    key: Path | None,
    passphrase_file: Path | None,
) -> SignedResume:

    place, keys = paths.key("operator", key), paths.trusted
    if path.exists():
        waiting = read_resume(path)
        signing = co_signer(place, keys, passphrase_file, ledger)
        if halt not in (None, waiting.document.halt_index):
            raise UsageError(f"HALT: {path} resumes halt {waiting.document.halt_index}, not {halt}")
    elif halt is None:
        raise UsageError(f"{path} does not exist: name the HALT to resume", "`kolm halts list`")
    else:
        with ledger_at(ledger) as client:
            chosen = open_halts(client, halt)[0]
            signing = operator_key(place, keys, passphrase_file, client)
            waiting = signed_resume(chosen, signing, reason)
    return sign_file(path, waiting, signing)


@dataclass(frozen=True, slots=True)
class SignedResume:
    """A resume with its signatures so far."""

    document: Resume
    envelope: Envelope

    @property
    def signatures(self) -> int:
        return len(self.envelope.signatures)


@dataclass(frozen=True, slots=True)
class Resumed:
    """A halt that is over, and the entry that says so."""

    halt_index: int
    method: str
    resume_index: int


def open_halts(ledger: LedgerClient, index: int | None) -> tuple[Halt, ...]:
    """The halt at this entry, or all open halts. Raises KolmError, NotFound if there is none."""
    chosen = tuple(halt for halt in ledger.halt_state().halts if index in (None, halt.halt_index))
    if not chosen:
        what = "there is no open halt" if index is None else f"entry {index} is not an open halt"
        raise exits.NotFound(what, "`kolm halts list` shows the open halts")
    return chosen


def _scope(halt: Halt) -> Scope:
    return Scope(halt.scope.base_cid, halt.scope.method, halt.scope.head_cid)


def signed_resume(halt: Halt, key: Signer, reason: str) -> SignedResume:
    """A resume of `halt` with one signature. Raises FormatError."""
    document = Resume(_scope(halt), halt.halt_index, reason, timestamp(datetime.now(UTC)))
    return SignedResume(document, sign_document(document, key))


def append_resume(ledger: LedgerClient, resume: SignedResume) -> Resumed:
    """Raises KolmError, Failed if more operators have to sign."""
    try:
        appended = ledger.append(resume.envelope.to_bytes())
    except InvalidArgument as error:
        if error.reason != "SIGNATURES_MISSING":
            raise
        hint = "collect signatures in a file with `kolm halts resume --sign-into`, then `kolm halts resume --file`"
        raise Failed(error.message, hint) from error
    return Resumed(resume.document.halt_index, resume.document.scope.method, appended.index)


def read_resume(path: Path) -> SignedResume:
    """A resume that waits for signatures. Raises UsageError."""
    try:
        envelope = Envelope.from_bytes(path.read_bytes())
        document = read_document(envelope)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except LedgerError as error:
        raise UsageError(f"{path} is not a resume: {error}") from None
    if not isinstance(document, Resume):
        raise UsageError(f"{path} is not a resume")
    return SignedResume(document, envelope)


def sign_file(path: Path, resume: SignedResume, key: Signer) -> SignedResume:
    """Add a signature to a resume and write it to its file. Raises UsageError."""
    try:
        signed = SignedResume(resume.document, add_signature(resume.envelope, key))
    except FormatError as error:
        raise UsageError(f"{path} cannot be signed: {error}") from None
    try:
        write_durably(path, signed.envelope.to_bytes() + b"\n", mode=0o644)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    return signed


def _halts_view(state: dict[str, Any]) -> View:
    """One line for each open halt."""
    return table(
        state["halts"],
        Column("halt", "halt_index", right=True),
        Column("verdict", "verdict_index", right=True),
        Column("method", "scope.method"),
        Column("base", lambda halt: short(halt["scope"]["base_cid"])),
        Column("why", "reason"),
        empty=f"nothing is halted; {state['epoch']} halts so far",
    )
