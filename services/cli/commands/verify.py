"""`kolm verify`: a bundle or a proof file, offline. Needs nothing but what the wheel kolm-verify brings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.failures import exits
from services.cli.options import options

if TYPE_CHECKING:
    from services.cli.jobs.receipts.bundle_trust import Sources


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The keys, files and limits that a file is checked against."""

    policy: Annotated[
        Path | None,
        typer.Option("--policy", help="The expected log and witnesses (C2SP tlog-policy). Default: <trusted>/policy."),
    ] = None
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option("--checkpoint", help="A checkpoint of the log that you got earlier; the bundle must extend it."),
    ] = None
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="TIME|log",
            help="Count the replays owed at this time, or (log) at the latest that the log names. Default: now.",
        ),
    ] = None
    max_unreplayable: Annotated[
        int, typer.Option(min=0, metavar="N", help="Accept this many receipts that could not be replayed.")
    ] = 0
    max_age: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Refuse a checkpoint that witnesses cosigned longer ago, for example 24h."),
    ] = None
    tsa: Annotated[
        Path | None, typer.Option("--tsa", help="Certificates (PEM) of the timestamping authority that you trust.")
    ] = None
    as_claimed: Annotated[
        bool, typer.Option("--as-claimed", help="Use the bundle's own keys; shows only that it agrees with itself.")
    ] = False
    history: Annotated[
        Path | None,
        typer.Option("--history", help="For a proof: a bundle of the log that shows which keys replaced which."),
    ] = None
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|GGUF|NAME",
            callback=options.found_model,
            help="For a receipt file or a conversation: the model whose tokenizer compares texts and tokens.",
        ),
    ] = None
    prompt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For a receipt file: the prompt that you sent, or its messages.")
    ] = None
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For a receipt file: the text that you were served.")
    ] = None
    promise: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A promise that you were given before an answer: is its receipt there?"),
    ] = None

    def sources(self, trusted: Path) -> Sources:
        """Raises UsageError for a time or an age that is none."""
        from services.cli.jobs.receipts.bundle_trust import Sources
        from services.cli.values.parsing import age, moment

        return Sources(
            trusted,
            self.policy,
            tuple(self.checkpoint or ()),
            as_of=None if self.as_of in (None, "log") else moment("--as-of", self.as_of),
            by_log_clock=self.as_of == "log",
            max_unreplayable=self.max_unreplayable,
            max_age=None if self.max_age is None else age("--max-age", self.max_age),
            tsa=self.tsa,
            as_claimed=self.as_claimed,
            model=self.model,
            promises=tuple(self.promise or ()),
        )


GIVEN = VerifyOptions()


@dataclass(frozen=True, slots=True)
class _Checked:
    """The result of a check, and its views."""

    ok: bool
    as_json: Callable[[], Any]
    as_text: Callable[[], Any]


def verify(
    path: Annotated[
        Path,
        typer.Argument(help="A bundle (folder, .tar.gz, .tar), a receipt file, a .tlog-proof, a SCITT statement."),
    ],
    home: options.Home = options.HOME,
    given: VerifyOptions = GIVEN,
    workers: Annotated[int, typer.Option(min=0, help="Processes that check signatures; 0 is one for each core.")] = 0,
    json: options.Json = False,
) -> None:
    """Check a bundle, a receipt file or a proof against the keys that you trust, offline. Exit code 3 if not."""
    if not path.exists():
        raise exits.Missing(f"there is no {path}; expected a bundle, a receipt file, a proof or a statement")

    from services.cli.jobs.receipts.promise_answer import read_answer
    from services.cli.jobs.receipts.receipt_file import is_receipt_file
    from services.cli.terminal.output import answer

    if path.exists() and not (path.is_file() or path.is_dir()):  # such as a pipe, which can be read but once
        raise exits.UsageError(f"{path} is neither a file nor a folder; save what it brings to a file")
    sources = given.sources(home.trusted)
    if is_receipt_file(path):
        checked = _receipt_file(path, sources, given)
    elif (answered := read_answer(path)) is not None:
        checked = _promise_answer(answered, sources)
    else:
        checked = _bundle_or_proof(path, sources, given, workers)
    answer(json, checked.as_json, checked.as_text)
    raise typer.Exit(exits.OK if checked.ok else exits.VERIFICATION_FAILED)


def _promise_answer(answered: bytes, sources: Sources) -> _Checked:
    from services.cli.jobs.receipts.promise_answer import check_answer
    from services.cli.views.receipts.promise_answer import answer_json, answer_view

    judged = check_answer(answered, sources)
    return _Checked(not judged.broken, lambda: answer_json(judged), lambda: answer_view(judged))


def _receipt_file(path: Path, sources: Sources, given: VerifyOptions) -> _Checked:
    from services.cli.jobs.receipts.receipt_file import check_receipt_file
    from services.cli.views.receipts.receipt_file import receipt_file_json, receipt_file_view

    found = check_receipt_file(path, sources, given.history, given.prompt, given.output)
    return _Checked(True, lambda: receipt_file_json(found), lambda: receipt_file_view(found))


def _bundle_or_proof(path: Path, sources: Sources, given: VerifyOptions, workers: int) -> _Checked:
    """Raises UsageError for options that belong to another kind of file."""
    from services.cli.jobs.receipts.bundle_trust import is_json, is_proof, read_statement

    if given.prompt is not None or given.output is not None:
        raise exits.UsageError("--prompt and --output belong to a receipt file")
    statement = read_statement(path)
    alone = statement is not None or is_proof(path)
    if not alone and is_json(path):
        raise exits.VerificationFailed(
            f"{path} is no receipt file or statement, or only a part of one",
            "a promise is held against a bundle or a receipt file: --promise",
        )
    if given.promise and alone:
        raise exits.UsageError("--promise belongs to a bundle or a receipt file")
    if given.history is not None and not alone:
        raise exits.UsageError("--history: belongs to a proof file; a bundle brings its own")
    if statement is not None:
        return _statement(statement, sources, given.history)
    return _proof(path, sources, given.history) if alone else _bundle(path, sources, workers)


def _statement(statement: bytes, sources: Sources, history: Path | None) -> _Checked:
    from services.cli.jobs.receipts.bundle_verification import check_statement
    from services.cli.views.receipts.statement import statement_json, statement_view

    stated = check_statement(statement, sources, history)
    return _Checked(True, lambda: statement_json(stated), lambda: statement_view(stated))


def _proof(path: Path, sources: Sources, history: Path | None) -> _Checked:
    from services.cli.jobs.receipts.bundle_verification import check_proof
    from services.cli.views.receipts.bundle import proof_json, proof_view

    proven = check_proof(path, sources, history)
    return _Checked(True, lambda: proof_json(proven), lambda: proof_view(proven))


def _bundle(path: Path, sources: Sources, workers: int) -> _Checked:
    from services.cli.jobs.receipts.bundle_verification import check_bundle
    from services.cli.views.receipts.bundle import report_json, report_view

    report, claimed = check_bundle(path, sources, workers), sources.as_claimed
    return _Checked(
        report.ok, lambda: report_json(report, as_claimed=claimed), lambda: report_view(report, as_claimed=claimed)
    )
