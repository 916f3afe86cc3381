"""`kolm heads pull`, `list` and `gc`: heads that are published, and what the registry keeps for none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.failures.exits import UsageError
from services.cli.options import options

Reference = Annotated[str, typer.Argument(help="name, name@sha256:<digits>, or cidv1:sha256:…")]
Base = Annotated[str | None, typer.Option("--base", metavar="CID", help="Only heads for this base.")]


def pull(
    reference: Annotated[
        str, typer.Argument(help="name, name@sha256:<digits>, or cidv1:sha256:…; with --check also a pulled folder.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder to fill. Default: <data-dir>/heads/<digits>.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Keep nothing: only check publisher, place in the log and every byte.")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="With --check of a folder: do not ask the ledger about withdrawals.")
    ] = False,
    base: Base = None,
    registry: options.Registry = options.REGISTRY,
    ledger: options.Ledger = options.LEDGER,
    home: options.Home = options.HOME,
    json: options.Json = False,
) -> None:
    """Fetch a head and check all of it against the ledger's signed tree. Exit code 3 if something is wrong."""
    if check and out is not None:
        raise UsageError("--out: is filled by a pull; --check keeps nothing")
    if offline and not check:
        raise UsageError("--offline: nothing can be fetched without a server; use it with --check")

    from services.cli.jobs.heads import fetching
    from services.cli.jobs.trust import load_trusted
    from services.cli.terminal.output import answer
    from services.cli.views.heads.heads import checked_json, checked_view
    from services.client import LedgerClient
    from services.client.registry import RegistryClient

    keys = load_trusted(home.trusted)
    if check:
        checked = fetching.verified(reference, keys, registry, None if offline else ledger, base)
        return answer(json, lambda: checked_json(checked), lambda: checked_view(checked))
    with RegistryClient.connect(registry) as client, LedgerClient.connect(ledger) as log:
        pulled = fetching.pull(client, log, keys, reference, base_cid=base, out=out, cache=home.data_dir / "heads")
    answer(json, lambda: checked_json(pulled), lambda: f"{pulled.folder}\n{pulled.head.cid}")


def list_(
    reference: Annotated[
        str | None, typer.Argument(help="All that is on record about this head, withdrawn or not.")
    ] = None,
    base: Base = None,
    name: Annotated[str | None, typer.Option(help="Only heads of this name.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Include withdrawn heads.")] = False,
    registry: options.Registry = options.REGISTRY,
    json: options.Json = False,
) -> None:
    """List heads, the oldest first, or show one."""
    if reference is not None and (name is not None or every):
        raise UsageError("--name and --all: choose among heads; leave them out where one is named")

    from services.cli.terminal.output import answer
    from services.cli.views.heads.heads import head_json, head_view, list_view
    from services.client.registry import RegistryClient

    with RegistryClient.connect(registry) as client:
        if reference is not None:
            head = client.resolve(reference, base_cid=base, include_withdrawn=True)
            return answer(json, lambda: head_json(head), lambda: head_view(head))
        heads = list(client.heads(base_cid=base, name=name, include_withdrawn=every))
    answer(json, lambda: [head_json(head) for head in heads], lambda: list_view(heads))


def gc(
    older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE", help="Only blobs at least this old: 90m, 24h, 7d. An upload may still need younger ones."
        ),
    ] = "24h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")] = False,
    registry: options.Registry = options.REGISTRY,
    json: options.Json = False,
) -> None:
    """Remove the registry's blobs that no head refers to: uploads that were never published. Safe while it serves.

    Heads keep theirs, withdrawn ones too: an auditor may still want to verify them.
    """
    from services.cli.terminal.output import answer
    from services.cli.values.parsing import age
    from services.cli.views.heads.blobs import collected_json, collected_view
    from services.client.registry import RegistryClient

    oldest = age("--older-than", older_than)
    with RegistryClient.connect(registry) as client:
        collected = client.collect(oldest, dry_run=dry_run)
    answer(json, lambda: collected_json(collected, dry_run), lambda: collected_view(collected, dry_run))
