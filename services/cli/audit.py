"""`kolm audit`: recompute receipted requests."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Option

from ledger.documents.audit import ACCUSATIONS, PASSES
from services.cli.frame import exits, options
from services.cli.frame.exits import Failed, UsageError, VerificationFailed
from services.cli.frame.options import ENGINE, EngineOptions, ledger_at
from services.cli.frame.output import members, print_json, remark, show, steps
from services.cli.frame.views import Column, Styled, joined, outcome, table
from services.cli.trust import trust_own

if TYPE_CHECKING:
    from services.auditor.auditor import Auditor, Examined, Left
    from services.auditor.examination import EnginePlan
    from services.auditor.settings import AuditorSettings

_POLL_SECONDS = 0.5
_FOUND = ("outcome", "tokens_compared", "deviation", "verification", "replayed_by", "reason", "tampered")


def run(
    sample: Annotated[
        float, Option(min=0.0, max=1.0, help="Share of receipts to replay in addition to owed ones; 1 is all.")
    ] = 1.0,
    model: Annotated[
        Path | None,
        options.model("--model", "The audited base, to load here: a transformers directory, a GGUF file, or a name."),
    ] = None,
    engine: EngineOptions = ENGINE,
    served_by: Annotated[
        Literal["vllm", "sglang", "llama-server"] | None,
        Option("--engine", help="The engine that computed the receipts, if not kolm's own."),
    ] = None,
    plain_url: Annotated[
        str | None,
        Option(
            metavar="URL", callback=options.engine_access, help="URL of that engine with speculation off, to ask again."
        ),
    ] = None,
    engine_key_file: Annotated[
        Path | None,
        Option(metavar="FILE", callback=options.engine_access, help="A file with the engine's API key."),
    ] = None,
    decode: Annotated[bool, Option("--decode", help="Decode every answer token by token.")] = False,
    ledger: options.Ledger = options.LEDGER,
    paths: options.Paths = options.PATHS,
    key: Annotated[
        Path | None, Option(help="The auditor's key, or a PKCS#11 URI. Default: <data-dir>/keys/auditor.pem.")
    ] = None,
    key_passphrase_file: options.KeyPassphrase = None,
    json: options.Json = False,
) -> None:
    """Make one pass over the ledger: replay owed receipts and spot checks without a verdict, append the verdicts.
    Receipts of another model are left to an auditor that has it.

    Exit code 3 if a replay deviates, a receipt was tampered with, or an earlier deviation is still halted; 1 if a
    receipt could not be replayed, which is not a pass, or was left.
    """
    from services.auditor.settings import AuditorSettings

    if model is None and plain_url is None:
        raise UsageError("expected --model: the audited base, with the same weights")
    if plain_url is not None and served_by is None:
        raise UsageError("--plain-url needs --engine: vllm, sglang or llama-server")
    if key is None:  # an auditor with a key of this data directory is trusted here
        trust_own(paths.key("auditor"), "auditor", paths.trusted, key_passphrase_file)
    settings = AuditorSettings.of_one_pass(
        ledger=ledger,
        engine=served_by or "kolm",
        plain_url=plain_url,
        engine_key_file=engine_key_file,
        decode_share=float(decode),
        key_file=paths.key("auditor", key),
        key_passphrase_file=key_passphrase_file,
        trusted_keys=paths.trusted,
        data_dir=paths.data_dir,
    )
    own = None if model is None else engine.plan(model)
    if own is not None and served_by is not None:
        own = own.for_reference()
    done = run_pass(settings, own, sample, quiet=json)
    if json:
        print_json(done.document)
    else:
        _show_pass(done.document)
    raise typer.Exit(exits.VERIFICATION_FAILED if done.deviated else exits.OK if done.passed else exits.FAILED)


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over the ledger. `document` has every verdict, and the receipts that are left.

    `deviated`: a replay deviates, a receipt was tampered with or a scope is still halted. `passed`: every due receipt
    was replayed exactly, or passed the checks of another engine's outputs.
    """

    document: dict[str, Any]
    deviated: bool
    passed: bool


def run_pass(settings: AuditorSettings, own: EnginePlan | None, sample: float, *, quiet: bool = False) -> Pass:
    """Examine due receipts and append the verdicts; a terminal shows the current step, unless `quiet`.

    Raises KolmError, LedgerError, CommandError.
    """
    with ledger_at(settings.ledger) as ledger:
        before = Counter(verdict.document.outcome for verdict in ledger.verdicts())
        done = _work(settings, own, sample, quiet=quiet)
        newest = {verdict.document.receipt_index: verdict for verdict in ledger.verdicts()} if done.waited else {}
        ours = {each.receipt_index for each in done.examined}
        elsewhere = [newest[index] for index in done.waited if index in newest.keys() - ours]
        halts = ledger.halt_state().halts
    findings = [each.finding for each in done.examined]
    outcomes = {*(each.outcome for each in findings), *(verdict.document.outcome for verdict in elsewhere)}
    deviated = bool(halts or outcomes & {*ACCUSATIONS} or any(each.tampered for each in findings))
    passed = all(each.passed for each in findings) and all(each.document.outcome in PASSES for each in elsewhere)
    document = {
        "verdicts": [_examined(each) for each in done.examined],
        "elsewhere": [  # verdicts of the other process that were waited for
            {"verdict_index": verdict.index, "auditor": done.other}
            | members(verdict.document, "receipt_index", "outcome", "tokens_compared")
            for verdict in elsewhere
        ],
        "open_halts": [halt.halt_index for halt in halts],
        "halted_methods": [halt.scope.method for halt in halts],
        "undecided": done.undecided,  # receipts that no draw has decided on yet
        "remaining": sorted(done.remaining),  # entries that were due and were given up
        "left": [members(each, "receipt_index", "base_cid", "reason", "until") for each in done.left],
        "before": dict(before),  # verdicts from before, by outcome
    }
    return Pass(document, deviated, passed and not done.remaining and not done.left and not deviated)


@dataclass(frozen=True, slots=True)
class _Work:
    """Receipts that were examined, receipts that the process `other` had to replay first, and the rest."""

    examined: list[Examined]
    other: str
    waited: tuple[int, ...]
    left: list[Left]
    undecided: int
    remaining: set[int]


def _work(settings: AuditorSettings, own: EnginePlan | None, sample: float, *, quiet: bool) -> _Work:
    """Examine the due receipts. Raises CommandError."""
    from services.auditor.audit_error import AuditError, BrokenLog, EngineFailed
    from services.auditor.serving import LoadedWhenAsked, connected
    from services.generation.target.without_torch import hide_torch

    examined: list[Examined] = []
    try:
        with steps("reading the ledger", quiet=quiet) as step:
            engine = LoadedWhenAsked(own, threading.Event(), hide_torch, step)
            with connected(settings, engine, spot_checks=sample, announces=False) as auditor:
                other, waited = examine(auditor, examined.append, step)
                remaining = set(auditor.remaining) - {each.receipt_index for each in auditor.left}
                return _Work(examined, other, waited, _left(auditor), auditor.undecided, remaining)
    except BrokenLog as error:
        raise VerificationFailed(str(error), "`kolm ledger verify` shows more") from error
    except EngineFailed as error:
        raise UsageError(str(error), "name the audited base with --model") from error
    except AuditError as error:
        raise Failed(str(error)) from error


def _left(auditor: Auditor) -> list[Left]:
    """The receipts that neither this auditor nor the process with its folder can replay."""
    _, theirs = auditor.in_other_hands()
    return [each for each in auditor.left if each.receipt_index not in theirs]


def examine(
    auditor: Auditor,
    done: Callable[[Examined], None],
    step: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> tuple[str, tuple[int, ...]]:
    """Wait until the process that holds the auditor's folder has replayed the owed receipts, or is gone; then examine
    the rest. Returns that process, and the receipts that were waited for.
    """
    other, waited = auditor.in_other_hands()
    still = waited
    while still:
        step(f"waiting for {other}, which replays entry {still[0]}")
        pause(_POLL_SECONDS)
        still = auditor.in_other_hands()[1]
    for count, each in enumerate(auditor.run_pass(), start=1):
        done(each)
        step(f"replayed {count}, entry {each.receipt_index}; {len(auditor.remaining)} left")
    return other, waited


def _examined(each: Examined) -> dict[str, Any]:
    finding = each.finding
    about = {
        "receipt_id": each.receipt.receipt_id,
        "method": each.receipt.spec_decode.method,
        "engine": each.receipt.engine,
        "reference": None if finding.reference is None else finding.reference.to_document(),
    }
    return about | members(each, "receipt_index", "verdict_index", "halt_index") | members(finding, *_FOUND)


def _show_pass(done: dict[str, Any]) -> None:
    """The verdicts on stdout, the rest on stderr."""
    if done["verdicts"]:
        show(
            table(
                done["verdicts"],
                Column("entry", "receipt_index", right=True),
                Column("method", "method"),
                Column("tokens", "tokens_compared", right=True),
                Column("verdict", _outcome),
                Column("", lambda row: Styled(row["reason"] or "", "dim")),
            )
        )
    remark((f"{len(done['verdicts'])} replayed: ", *_counts(map(_outcome, done["verdicts"]))))
    if before := Counter({outcome(name): count for name, count in done["before"].items()}):
        remark((f"{before.total()} had a verdict before: ", *_counts(before.elements())))
    if done["undecided"]:
        remark(Styled(f"{done['undecided']} receipts wait for a draw", "dim"))
    if theirs := done["elsewhere"]:
        whose = ", ".join(sorted({each["auditor"] for each in theirs}))
        remark((f"{len(theirs)} replayed meanwhile by {whose}: ", *_counts(map(_outcome, theirs))))
    if left := len(done["remaining"]):
        remark(Styled(f"{left} left: every attempt to replay them failed; the auditor's log has the errors", "yellow"))
    for base_cid, count in sorted(Counter(each["base_cid"] for each in done["left"]).items()):
        remark(Styled(f"{count} left of {base_cid}: `kolm audit run --model …` with that model replays them", "yellow"))
    for index, method in zip(done["open_halts"], done["halted_methods"], strict=True):
        remark((Styled("halted:", "bold red"), f" {method}, entry {index}; `kolm halts list` shows why"))


def _outcome(row: dict[str, Any]) -> Styled:
    return outcome(row["outcome"], row["tokens_compared"])


def _counts(found: Iterable[Styled]) -> tuple[str | Styled, ...]:
    """The count of each outcome."""
    counts = sorted(Counter(found).items(), key=lambda each: each[0].text)
    return joined((f"{count} ", name) for name, count in counts) or ("nothing was due",)
