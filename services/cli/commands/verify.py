"""`kolm verify`: a bundle or a proof file, offline. Needs nothing but what `pip install kolm-serve[verify]` brings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli import exits, options


def verify(
    path: Annotated[
        Path,
        typer.Argument(
            help="A bundle (folder, .tar.gz, .tar), a receipt file, a .tlog-proof, a SCITT or in-toto statement."
        ),
    ],
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", help="The expected log and witnesses (C2SP tlog-policy). Default: <trusted>/policy."),
    ] = None,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option("--checkpoint", help="A checkpoint of the log that you got earlier; the bundle must extend it."),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="TIME|log",
            help="Count the replays owed at this time, or (log) at the latest that the log names. Default: now.",
        ),
    ] = None,
    max_unreplayable: Annotated[
        int, typer.Option(min=0, metavar="N", help="Accept this many receipts that could not be replayed.")
    ] = 0,
    max_age: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Refuse a checkpoint that witnesses cosigned longer ago, for example 24h."),
    ] = None,
    tsa: Annotated[
        Path | None, typer.Option("--tsa", help="Certificates (PEM) of the timestamping authority that you trust.")
    ] = None,
    as_claimed: Annotated[
        bool, typer.Option("--as-claimed", help="Use the bundle's own keys; shows only that it agrees with itself.")
    ] = False,
    history: Annotated[
        Path | None,
        typer.Option("--history", help="For a proof: a bundle of the log that shows which keys replaced which."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|GGUF|NAME",
            callback=options.found_model,
            help="For a conversation of kolm chat: the model whose tokenizer compares its texts.",
        ),
    ] = None,
    prompt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For a receipt file: the prompt that you sent, or its messages.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For a receipt file: the text that you were served.")
    ] = None,
    promise: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A promise that you were given before an answer: is its receipt there?"),
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes that check signatures; 0 is one for each core.")] = 0,
    json: options.Json = False,
) -> None:
    """Check a bundle, a receipt file or a proof against the keys that you trust, offline. Exit code 3 if not."""
    from services.cli.jobs.bundle_trust import Sources, is_proof, read_statement
    from services.cli.jobs.bundle_verification import check_bundle, check_proof, check_statement
    from services.cli.jobs.promise_answer import check_answer, read_answer
    from services.cli.jobs.receipt_file import check_receipt_file, is_receipt_file, kept_promises
    from services.cli.output import answer
    from services.cli.parsing import age, moment
    from services.cli.views.bundle import proof_json, proof_view, report_json, report_view
    from services.cli.views.promise_answer import answer_json, answer_view
    from services.cli.views.receipt_file import receipt_file_json, receipt_file_view
    from services.cli.views.statement import statement_json, statement_view

    sources = Sources(
        trusted or data_dir / "trusted",
        policy,
        tuple(checkpoint or ()),
        as_of=None if as_of in (None, "log") else moment("--as-of", as_of),
        by_log_clock=as_of == "log",
        max_unreplayable=max_unreplayable,
        max_age=None if max_age is None else age("--max-age", max_age),
        tsa=tsa,
        as_claimed=as_claimed,
        model=model,
        promises=tuple(promise or ()),
    )
    if (answered := read_answer(path)) is not None:
        judged = check_answer(answered, sources)
        answer(json, lambda: answer_json(judged), lambda: answer_view(judged))
        raise typer.Exit(exits.VERIFICATION_FAILED if judged.broken else exits.OK)
    if is_receipt_file(path):
        document, place = check_receipt_file(path, sources, history, prompt, output)
        promises = kept_promises(document, sources)
        found = (document, place, promises)
        answer(json, lambda: receipt_file_json(*found), lambda: receipt_file_view(*found))
        return
    if prompt is not None or output is not None:
        raise exits.UsageError("--prompt and --output belong to a receipt file")
    statement = read_statement(path)
    proof = statement is None and is_proof(path)
    if promise and (proof or statement is not None):
        raise exits.UsageError("--promise belongs to a bundle or a receipt file")
    if statement is not None:
        stated = check_statement(statement, sources, history)
        answer(json, lambda: statement_json(stated), lambda: statement_view(stated))
        return
    if proof:
        proven = check_proof(path, sources, history)
        answer(json, lambda: proof_json(proven), lambda: proof_view(proven))
        return
    if history is not None:
        raise exits.UsageError("--history: belongs to a proof file; a bundle brings its own")
    report = check_bundle(path, sources, workers)
    answer(
        json,
        lambda: report_json(report, as_claimed=as_claimed),
        lambda: report_view(report, as_claimed=as_claimed),
    )
    raise typer.Exit(exits.OK if report.ok else exits.VERIFICATION_FAILED)
