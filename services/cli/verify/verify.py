"""`kolm verify`: checks a bundle or a proof file offline. The wheel kolm-verify is enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer import Argument, Option

from services.cli.frame import exits, options
from services.cli.frame.output import answer, members
from services.cli.frame.values import age, moment
from services.cli.frame.views import View
from services.cli.verify import shown

if TYPE_CHECKING:
    from services.cli.verify.sources import TrustSources


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """Keys, files and limits of a check."""

    policy: Annotated[
        Path | None,
        Option("--policy", help="The expected log and witnesses (C2SP tlog-policy). Default: <trusted>/policy."),
    ] = None
    checkpoint: Annotated[
        list[Path] | None,
        Option("--checkpoint", help="An earlier checkpoint of the log, which the bundle must extend."),
    ] = None
    as_of: Annotated[
        str | None,
        Option(
            "--as-of",
            metavar="TIME|log",
            help="Count the replays owed at this time, or (log) at the log's latest time. Default: now.",
        ),
    ] = None
    max_unreplayable: Annotated[
        int, Option(min=0, metavar="N", help="Accept this many receipts that could not be replayed.")
    ] = 0
    max_age: Annotated[
        str | None,
        Option(metavar="DURATION", help="Refuse a checkpoint that witnesses cosigned longer ago, for example 24h."),
    ] = None
    history: Annotated[
        Path | None, Option("--history", help="For a proof: a bundle of the log with its rotations of keys.")
    ] = None
    model: Annotated[
        Path | None,
        Option(
            metavar="DIR|GGUF|NAME",
            callback=options.found_model,
            help="For a receipt file or a conversation: the model whose tokenizer compares texts and tokens.",
        ),
    ] = None
    prompt: Annotated[
        Path | None, Option(metavar="FILE", help="For a receipt file: the prompt that you sent, or its messages.")
    ] = None
    output: Annotated[
        Path | None, Option(metavar="FILE", help="For a receipt file: the text that you were served.")
    ] = None
    promise: Annotated[
        list[Path] | None,
        Option(metavar="FILE", help="A promise that came before an answer; checks that its receipts are there."),
    ] = None

    def sources(self, trusted: Path) -> TrustSources:
        """Raises UsageError for an invalid time or age."""
        from services.cli.verify.sources import TrustSources

        return TrustSources(
            trusted,
            self.policy,
            tuple(self.checkpoint or ()),
            as_of=None if self.as_of in (None, "log") else moment("--as-of", self.as_of),
            by_log_clock=self.as_of == "log",
            max_unreplayable=self.max_unreplayable,
            max_age=None if self.max_age is None else age("--max-age", self.max_age),
            model=self.model,
            promises=tuple(self.promise or ()),
        )


GIVEN = VerifyOptions()


@dataclass(frozen=True, slots=True)
class _Checked:
    """The result of a check, and how it is shown."""

    ok: bool
    document: dict[str, Any]
    view: Callable[[dict[str, Any]], View]


def verify(
    place: Annotated[
        str,
        Argument(
            metavar="PATH|URL",
            help="A bundle (folder, .tar.gz, .tar), the tiles of a log (folder or URL), a receipt file, a .tlog-proof, "
            "a SCITT statement.",
        ),
    ],
    paths: options.Paths = options.PATHS,
    given: VerifyOptions = GIVEN,
    json: options.Json = False,
) -> None:
    """Check a bundle, a log, a receipt file or a proof against your trusted keys. Exit code 3 if a check fails."""
    from services.cli.verify.checks import is_receipt_file, read_answer
    from services.cli.verify.tile_sources import is_url

    sources = given.sources(paths.trusted)
    if is_url(place):
        if given.prompt or given.output or given.history:
            raise exits.UsageError("--prompt, --output and --history: need a file, not a log")
        _show(json, _bundle(place, sources))
    path = Path(place)
    if not path.exists():
        raise exits.NotFound(f"there is no {path}; expected a bundle, a receipt file, a proof or a statement")
    if not (path.is_file() or path.is_dir()):  # such as a pipe, which can be read but once
        raise exits.UsageError(f"{path} is neither a file nor a folder; save its output to a file")
    if is_receipt_file(path):
        checked = _receipt_file(path, sources, given)
    elif (answered := read_answer(path)) is not None:
        checked = _promise_answer(answered, sources)
    else:
        checked = _bundle_or_proof(path, sources, given)
    _show(json, checked)


def _show(json: bool, checked: _Checked) -> NoReturn:
    answer(json, checked.document, checked.view)
    raise typer.Exit(exits.OK if checked.ok else exits.VERIFICATION_FAILED)


def _promise_answer(answered: bytes, sources: TrustSources) -> _Checked:
    from services.cli.verify.checks import check_answer

    promise, found = check_answer(answered, sources)
    broken = found.breaks(promise)
    document = {"ok": not broken, "broken": broken, "missing": found.missing}
    documents = {"answer": found.to_document(), "promise": promise.to_document()}
    return _Checked(not broken, document | documents, shown.answer_view)


def _receipt_file(path: Path, sources: TrustSources, given: VerifyOptions) -> _Checked:
    from services.cli.verify.checks import check_receipt_file

    found = check_receipt_file(path, sources, given.history, given.prompt, given.output)
    document = {
        "ok": True,
        "receipt": found.document.to_document(),
        "overclaim": found.document.overclaim,  # a claimed speedup that cannot have been measured
        "proof": shown.proof_document(found.place),
        "promises": [promise.to_document() for promise in found.promises],  # that the receipt keeps
        "texts": found.texts and found.texts.same,  # null without a model to compare them with the tokens
        "texts_compared": found.texts and found.texts.result,
    }
    return _Checked(True, document, shown.receipt_file_view)


def _bundle_or_proof(path: Path, sources: TrustSources, given: VerifyOptions) -> _Checked:
    """Raises UsageError for options that belong to another kind of file."""
    from services.cli.verify.sources import is_json, is_proof, read_statement

    if given.prompt is not None or given.output is not None:
        raise exits.UsageError("--prompt and --output need a receipt file")
    statement = read_statement(path)
    alone = statement is not None or is_proof(path)
    if not alone and is_json(path):
        raise exits.VerificationFailed(
            f"{path} is not a receipt file or statement, or only a part of one",
            "a promise is checked against a bundle or a receipt file: --promise",
        )
    if given.promise and alone:
        raise exits.UsageError("--promise needs a bundle or a receipt file")
    if given.history is not None and not alone:
        raise exits.UsageError("--history: needs a proof file; a bundle has its own")
    if statement is not None:
        return _statement(statement, sources, given.history)
    return _proof(path, sources, given.history) if alone else _bundle(str(path), sources)


def _statement(statement: bytes, sources: TrustSources, history: Path | None) -> _Checked:
    from services.cli.verify.checks import check_statement

    stated = check_statement(statement, sources, history)
    document = {"ok": True, "issuer": stated.issuer.key_id, **members(stated, "receipt", "index", "origin", "size")}
    return _Checked(True, document, shown.statement_view)


def _proof(path: Path, sources: TrustSources, history: Path | None) -> _Checked:
    from ledger.tree.tlog_proof import TlogProof
    from services.cli.verify.checks import check_proof

    proven = check_proof(TlogProof.from_bytes(path.read_bytes()), sources, history)
    return _Checked(True, shown.proof_document(proven), shown.proof_view)


def _bundle(place: str, sources: TrustSources) -> _Checked:
    from services.cli.verify.checks import check_bundle

    report = check_bundle(place, sources)
    return _Checked(report.ok, shown.report_document(report), shown.report_view)
