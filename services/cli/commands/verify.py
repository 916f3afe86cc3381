"""`kolm verify`: a bundle or a proof file, offline. Needs nothing but what `pip install kolm[verify]` brings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli import exits, options


def verify(
    path: Annotated[Path, typer.Argument(help="A bundle (folder, .tar.gz, .tar) or a .tlog-proof file.")],
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", help="Which log and which witnesses (C2SP tlog-policy). Default: <trusted>/policy."),
    ] = None,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option("--checkpoint", help="A checkpoint of the log that you got earlier; the bundle must extend it."),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="TIME", help="Count owed replays then, 2026-01-31T12:00:00Z.")
    ] = None,
    tsa: Annotated[
        Path | None, typer.Option("--tsa", help="Certificates (PEM) of the timestamping authority that you trust.")
    ] = None,
    as_claimed: Annotated[
        bool, typer.Option("--as-claimed", help="Use the bundle's own keys: shows only that it agrees with itself.")
    ] = False,
    history: Annotated[
        Path | None,
        typer.Option("--history", help="For a proof: a bundle of the log that shows which keys replaced which."),
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes that check signatures; 0 is one a core.")] = 0,
    json: options.Json = False,
) -> None:
    """Check a bundle or a proof against the keys that you trust, offline. Exit code 3, and why, if it is wrong."""
    from services.cli.jobs.bundle_trust import Sources, is_proof
    from services.cli.jobs.bundle_verification import check_bundle, check_proof
    from services.cli.output import data, print_json
    from services.cli.views.bundle import proof_json, proof_view, report_json, report_view

    sources = Sources(trusted or data_dir / "trusted", policy, tuple(checkpoint or ()), as_of, tsa, as_claimed)
    if is_proof(path):
        proof = check_proof(path, sources, history)
        if json:
            print_json(proof_json(proof))
        else:
            data().print(proof_view(proof))
        return
    if history is not None:
        raise exits.UsageError("--history: belongs to a proof file; a bundle brings its own")
    report = check_bundle(path, sources, workers)
    if json:
        print_json(report_json(report, as_claimed=as_claimed))
    else:
        data().print(report_view(report, as_claimed=as_claimed))
    raise typer.Exit(exits.OK if report.ok else exits.VERIFICATION_FAILED)
