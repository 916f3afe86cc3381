"""`kolm heads pull`, `list`, `show` and `verify`: heads that are published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import options

Reference = Annotated[str, typer.Argument(help="name, name@sha256:<digits>, or cidv1:sha256:…")]
Base = Annotated[str | None, typer.Option("--base", metavar="CID", help="Only heads for this base.")]


def pull(
    reference: Reference,
    out: Annotated[Path | None, typer.Option(help="Folder to fill. Default: <data-dir>/heads/<digits>.")] = None,
    base: Base = None,
    registry: options.Registry = options.REGISTRY,
    ledger: options.Ledger = options.LEDGER,
    home: options.Home = options.HOME,
    json: options.Json = False,
) -> None:
    """Fetch a head and check all of it against the ledger's signed tree. Exit code 3 if something is wrong."""
    from services.cli.jobs.heads import fetching
    from services.cli.jobs.trust import load_trusted
    from services.cli.terminal.output import answer
    from services.cli.views.heads.heads import checked_json
    from services.client import LedgerClient
    from services.client.registry.registry import RegistryClient

    keys = load_trusted(home.trusted)
    with RegistryClient.connect(registry) as client, LedgerClient.connect(ledger) as log:
        checked = fetching.pull(client, log, keys, reference, base_cid=base, out=out, cache=home.data_dir / "heads")
    answer(json, lambda: checked_json(checked), lambda: f"{checked.folder}\n{checked.head.cid}")


def list_(
    base: Base = None,
    name: Annotated[str | None, typer.Option(help="Only heads of this name.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Include withdrawn heads.")] = False,
    registry: options.Registry = options.REGISTRY,
    json: options.Json = False,
) -> None:
    """List heads, the oldest first."""
    from services.cli.terminal.output import answer
    from services.cli.views.heads.heads import head_json, list_view
    from services.client.registry.registry import RegistryClient

    with RegistryClient.connect(registry) as client:
        heads = list(client.heads(base_cid=base, name=name, include_withdrawn=every))
    answer(json, lambda: [head_json(head) for head in heads], lambda: list_view(heads))


def show(
    reference: Reference, base: Base = None, registry: options.Registry = options.REGISTRY, json: options.Json = False
) -> None:
    """Show what is on record about a head, withdrawn or not."""
    from services.cli.terminal.output import answer
    from services.cli.views.heads.heads import head_json, head_view
    from services.client.registry.registry import RegistryClient

    with RegistryClient.connect(registry) as client:
        head = client.resolve(reference, base_cid=base, include_withdrawn=True)
    answer(json, lambda: head_json(head), lambda: head_view(head))


def verify(
    head: Annotated[str, typer.Argument(help="A folder that `pull` filled, or a reference.")],
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the ledger about withdrawals.")] = False,
    registry: options.Registry = options.REGISTRY,
    ledger: options.Ledger = options.LEDGER,
    home: options.Home = options.HOME,
    json: options.Json = False,
) -> None:
    """Check a head's publisher, its place in the log and every byte. Exit code 3, and why, if one of them is wrong."""
    from services.cli.jobs.heads.fetching import verified
    from services.cli.jobs.trust import load_trusted
    from services.cli.terminal.output import answer
    from services.cli.views.heads.heads import checked_json, checked_view

    keys = load_trusted(home.trusted)
    checked = verified(head, keys, registry, None if offline else ledger)
    answer(json, lambda: checked_json(checked), lambda: checked_view(checked))
