"""The `kolm` command: its groups and commands. Imports nothing heavy, for `kolm --help` has to be instant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from services.cli.commands import (
    audit,
    cid,
    corpus,
    doctor,
    generate,
    halts,
    health,
    models,
    receipts,
    registry,
    replay,
    serve,
    up,
    verify,
)
from services.cli.commands.chat import chat
from services.cli.commands.heads import convert, fetch, kscore, publish, train
from services.cli.commands.ledger import erase, export, fsck, log, rotate_key
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


def _add_group(name: str, summary: str, commands: dict[str, Callable[..., None]]) -> None:
    group = typer.Typer(no_args_is_help=True)
    for command, function in commands.items():
        group.command(command)(function)
    app.add_typer(group, name=name, help=summary)


app.command("up")(up.up)
app.add_typer(serve.group(), name="serve", help="Run one service in the foreground, with all of its own flags.")
app.command("health")(health.health)
app.command("doctor")(doctor.doctor)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
_add_group(
    "receipts",
    "List receipts, show, check and export one, check a promise.",
    {"list": receipts.list_, "show": receipts.show, "export": receipts.export, "promised": receipts.promised},
)
_add_group(
    "ledger",
    "Verify the ledger, show its signed head.",
    {
        "verify": log.verify,
        "head": log.head,
        "fsck": fsck.fsck,
        "erase": erase.erase,
        "export": export.export,
        "rotate-key": rotate_key.rotate_key,
    },
)
_add_group(
    "audit",
    "Compute receipted requests again, now.",
    {"run": audit.run, "obligations": audit.obligations, "jobs": audit.jobs},
)
_add_group(
    "halts",
    "List what audits have halted, resume it.",
    {"list": halts.list_, "sign": halts.sign, "resume": halts.resume},
)
_add_group(
    "models",
    "Models that --model can name: list, show, import.",
    {"list": models.list_, "show": models.show, "import": models.import_},
)
_add_group(
    "heads",
    "Draft heads: publish, fetch, check, withdraw.",
    {
        "kscore": kscore.kscore,
        "train": train.train,
        "push": publish.push,
        "pull": fetch.pull,
        "list": fetch.list_,
        "show": fetch.show,
        "verify": fetch.verify,
        "withdraw": publish.withdraw,
        "convert": convert.convert,
    },
)
_add_group("registry", "The registry of heads: remove what nothing refers to.", {"collect": registry.collect})
_add_group(
    "corpus",
    "Datastores for the method rest: build, check, search.",
    {"build": corpus.build, "show": corpus.show, "verify": corpus.verify, "search": corpus.search},
)
app.command("verify")(verify.verify)
app.command("replay")(replay.replay)
app.command("cid")(cid.cid)
