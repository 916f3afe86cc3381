"""`kolm halts`: the scopes that audits have halted, and their resumption, signed by operators."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

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
from services.cli.frame.output import answer, members
from services.cli.frame.views import Column, View, short, table
from services.cli.trust import co_signer, operator_key, operators_needed
from services.client.errors import InvalidArgument
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.log import Halt


def list_(ledger: options.Ledger = options.LEDGER, json: options.Json = False) -> None:
    """List open halts: scopes without speculation until an operator resumes them. Exit code 3 if there is one."""
    with ledger_at(ledger) as client:
        state = client.halt_state()
    answer(json, members(state, "epoch", "halts"), _halts_view)  # epoch counts closed halts too
    raise typer.Exit(exits.VERIFICATION_FAILED if state.halts else exits.OK)


def resume(
    halt: Annotated[int | None, Argument(min=0, help="The halt's entry, as `kolm halts list` shows it.")] = None,
    every: Annotated[bool, Option("--all", help="Resume every open halt.")] = False,
    file: Annotated[
        Path | None, Option(dir_okay=False, help="Append the resume in this file, which operators have signed.")
    ] = None,
    sign_into: Annotated[
        Path | None,
        Option(
            "--sign-into",
            metavar="FILE",
            dir_okay=False,
            help="Append nothing, add a signature to this file, made for the HALT if missing; for each operator.",
        ),
    ] = None,
    reason: Annotated[str, Option(help="The reason; goes into the log.")] = "resumed by an operator",
    ledger: options.Ledger = options.LEDGER,
    paths: options.Paths = options.PATHS,
    key: options.OperatorKey = None,
    key_passphrase_file: options.KeyPassphrase = None,
    json: options.Json = False,
) -> None:
    """Append a resume, signed with the operator's key or by several operators in a file. The generation service
    then serves the scope again.
    """
    if sign_into is not None:
        if every or file is not None:
            raise UsageError("--sign-into: signs one resume and appends nothing; leave --all and --file out")
        waiting = _signed_into(sign_into, halt, reason, ledger, paths, key, key_passphrase_file)
        needed, document, count = operators_needed(paths.trusted), waiting.document, len(waiting.envelope.signatures)
        what = f"signed the resume of halt {document.halt_index}, {document.scope.method}: {document.reason!r}"
        counts = {"halt_index": document.halt_index, "signatures": count, "needed": needed}
        return answer(json, counts, lambda _: f"{what}; {count} of {needed} signatures")
    if [halt is not None, every, file is not None].count(True) != 1:
        raise UsageError("expected one of the HALT to resume, --all and --file", "`kolm halts list` shows them")
    with ledger_at(ledger) as client:
        if file is not None:
            signed = [_read_resume(file)]
        else:
            chosen = _open_halts(client, halt)
            signing = operator_key(paths.key("operator", key), paths.trusted, key_passphrase_file, client)
            signed = [_signed_resume(each, signing, reason) for each in chosen]
        resumed = [_appended(client, each) for each in signed]
    line = "resumed {method}: halt {halt_index}, resume is entry {resume_index}"
    answer(json, resumed, lambda done: [line.format(**each) for each in done])


def _signed_into(
    path: Path, halt: int | None, reason: str, ledger: str, paths: options.Paths, key: Path | None,
    passphrase_file: Path | None,
) -> SignedResume:  # fmt: skip
    """Add a signature to the resume in a file, which is made for the halt if it is missing. Raises UsageError."""
    place, keys = paths.key("operator", key), paths.trusted
    if path.exists():
        waiting = _read_resume(path)
        signing = co_signer(place, keys, passphrase_file, ledger)
        if halt not in (None, waiting.document.halt_index):
            raise UsageError(f"HALT: {path} resumes halt {waiting.document.halt_index}, not {halt}")
    elif halt is None:
        raise UsageError(f"{path} does not exist: name the HALT to resume", "`kolm halts list`")
    else:
        with ledger_at(ledger) as client:
            chosen = _open_halts(client, halt)[0]
            signing = operator_key(place, keys, passphrase_file, client)
            waiting = _signed_resume(chosen, signing, reason)
    try:
        signed = SignedResume(waiting.document, add_signature(waiting.envelope, signing))
        write_durably(path, signed.envelope.to_bytes() + b"\n", mode=0o644)
    except FormatError as error:
        raise UsageError(f"{path} cannot be signed: {error}") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    return signed


@dataclass(frozen=True, slots=True)
class SignedResume:
    """A resume with its signatures so far."""

    document: Resume
    envelope: Envelope


def _open_halts(ledger: LedgerClient, index: int | None) -> tuple[Halt, ...]:
    """The halt at this entry, or all open halts. Raises KolmError, NotFound if nothing is halted."""
    chosen = tuple(halt for halt in ledger.halt_state().halts if index in (None, halt.halt_index))
    if not chosen:
        what = "there is no open halt" if index is None else f"entry {index} is not an open halt"
        raise exits.NotFound(what, "`kolm halts list` shows the open halts")
    return chosen


def _signed_resume(halt: Halt, key: Signer, reason: str) -> SignedResume:
    """A resume of `halt` with one signature. Raises FormatError."""
    scope = Scope(halt.scope.base_cid, halt.scope.method, halt.scope.head_cid)
    document = Resume(scope, halt.halt_index, reason, timestamp(datetime.now(UTC)))
    return SignedResume(document, sign_document(document, key))


def _appended(ledger: LedgerClient, resume: SignedResume) -> dict[str, Any]:
    """The ended halt, and the entry of its resume. Raises KolmError, Failed if more operators have to sign."""
    try:
        appended = ledger.append(resume.envelope.to_bytes())
    except InvalidArgument as error:
        if error.reason != "SIGNATURES_MISSING":
            raise
        hint = "collect signatures in a file with `kolm halts resume --sign-into`, then `kolm halts resume --file`"
        raise Failed(error.message, hint) from error
    over = resume.document
    return {"halt_index": over.halt_index, "method": over.scope.method, "resume_index": appended.index}


def _read_resume(path: Path) -> SignedResume:
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
