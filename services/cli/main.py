"""The `kolm` command, put together from its families. Imports nothing heavy: `kolm --help` has to be instant."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli import (
    audit,
    cid,
    corpus,
    doctor,
    erase,
    export,
    fsck,
    generate,
    halts,
    heads,
    health,
    log,
    receipts,
    registry,
    rotate_key,
    serve,
    up,
    verify,
)
from services.cli.group import KolmGroup

app = typer.Typer(
    name="kolm",
    cls=KolmGroup,
    help="Speculative decoding that proves, request by request, that speculation changed nothing.",
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 verification failed, 4 not found, 5 unavailable.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"kolm {version('kolm')}")
        raise typer.Exit()


@app.callback()
def _global(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options of `kolm` itself."""


app.command("up")(up.up)
app.add_typer(serve.app, name="serve", help="Run one service in the foreground, with all of its own flags.")
app.command("health")(health.health)
app.command("doctor")(doctor.doctor)
app.command("generate")(generate.generate)
app.add_typer(receipts.app, name="receipts", help="List receipts, show and check one.")
app.add_typer(log.app, name="ledger", help="Verify the ledger, show its signed head.")
log.app.command("fsck")(fsck.fsck)
log.app.command("erase")(erase.erase)
log.app.command("export")(export.export)
log.app.command("rotate-key")(rotate_key.rotate_key)
app.add_typer(audit.app, name="audit", help="Replay receipts with speculation off, now.")
app.add_typer(halts.app, name="halts", help="List what audits have halted, resume it.")
app.add_typer(heads.app, name="heads", help="Draft heads: publish, fetch, check, withdraw.")
app.add_typer(registry.app, name="registry", help="The registry of heads: remove what nothing refers to.")
app.add_typer(corpus.app, name="corpus", help="Datastores for the method rest: build, check, search.")
app.command("verify")(verify.verify)
app.command("cid")(cid.cid)
