"""The `kolm` command: its groups and commands, each imported when it is called."""

from __future__ import annotations

import runpy
import sys
from importlib.util import find_spec
from typing import Annotated

import typer
from typer import Option

from services.cli.frame.command_tree import Forwarded, Group, KolmGroup, Member
from services.cli.frame.process import print_error
from services.runtime.usage import unread_variables


def _serve(context: typer.Context) -> None:
    """Runs the service as `python -m services.<service>` does; it exits with its own code."""
    module = f"services.{context.info_name}"
    if find_spec(f"{module}.__main__") is None:  # kolm-verify has folders of services, without the services
        raise ModuleNotFoundError(f"No module named {module}.__main__", name=f"{module}.__main__")
    sys.argv = [f"kolm serve {context.info_name}", *context.args]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


_COMMANDS: dict[str, Member] = {
    "up": "up.up:up",
    "serve": Group(
        "Run one service in the foreground, with all of its own flags.",
        {
            "generation": Forwarded("The model: generates and signs receipts.", _serve),
            "ledger": Forwarded("The append-only log of receipts, verdicts, halts and resumes.", _serve),
            "auditor": Forwarded("Draws receipts, replays them, appends verdicts and halts.", _serve),
            "registry": Forwarded(
                "Draft heads: manifests, blobs, and the signed documents of their publishers.", _serve
            ),
            "witness": Forwarded(
                "Cosigns checkpoints of append-only logs (HTTP, C2SP tlog-witness); run it away from the log.",
                _serve,
            ),
            "http": Forwarded(
                "OpenAI's API over a generation server: chats and completions, streamed or whole.", _serve
            ),
            "explorer": Forwarded(
                "Read-only web pages over a ledger; a receipt's proof is checked in the browser.", _serve
            ),
        },
    ),
    "init": "init:init",
    "status": "status:status",
    "doctor": "doctor:doctor",
    "generate": "generation.generate:generate",
    "chat": "generation.chat:chat",
    "receipts": Group(
        "List receipts, show, check and export one, check a promise.",
        {
            "list": "ledger.receipts:list_",
            "show": "ledger.receipts:show",
            "export": "ledger.receipts:export",
            "promised": "ledger.receipts:promised",
        },
    ),
    "ledger": Group(
        "The ledger: verify, show its head, erase, export, replace a key.",
        {
            "verify": "ledger.log:verify",
            "head": "ledger.log:head",
            "erase": "ledger.contents:erase",
            "export": "ledger.export:export",
            "rotate-key": "ledger.key_rotation:rotate_key",
        },
    ),
    "audit": Group("Recompute receipted requests now.", {"run": "audit:run"}),
    "trust": Group(
        "Keys that are trusted here: add, list, remove.",
        {"add": "trust:add", "list": "trust:list_", "remove": "trust:remove"},
    ),
    "tokens": Group(
        "Credentials of callers: create, list, revoke.",
        {"create": "tokens:create", "list": "tokens:list_", "revoke": "tokens:revoke"},
    ),
    "halts": Group("Scopes that audits have halted: list, resume.", {"list": "halts:list_", "resume": "halts:resume"}),
    "retention": "ledger.contents:retention",
    "models": Group("Models that --model can name: list, pull.", {"list": "models:list_", "pull": "models:pull"}),
    "heads": Group(
        "Draft heads: train, measure, push, pull, list, withdraw.",
        {
            "kscore": "heads.kscore:kscore",
            "train": "heads.train:train",
            "push": "heads.publish:push",
            "pull": "heads.fetch:pull",
            "list": "heads.fetch:list_",
            "withdraw": "heads.publish:withdraw",
        },
    ),
    "datastore": Group(
        "Datastores for the method rest: build, show.", {"build": "datastore:build", "show": "datastore:show"}
    ),
    "verify": "verify.verify:verify",
    "monitor": "monitor.monitor:monitor",
    "replay": "replay:replay",
}


class _Kolm(KolmGroup):
    """`kolm` itself."""

    members = _COMMANDS
    offline = frozenset(("verify", "monitor", "trust"))


app = typer.Typer(
    name="kolm",
    cls=_Kolm,
    help="Speculative decoding that proves, request by request, that speculation changed nothing.",
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 verification failed, 4 not found, 5 unavailable.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import distributions

        (installed, *_) = (each for name in ("kolm-serve", "kolm-verify") for each in distributions(name=name))
        print(f"kolm {installed.version}")
        raise typer.Exit()


@app.callback()
def _global(
    context: typer.Context,
    version: Annotated[
        bool, Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options of `kolm` itself."""
    if context.invoked_subcommand not in ("up", "serve"):  # which log these lines themselves
        for line in unread_variables():
            print_error(f"kolm: {line}")
