"""`kolm registry`: what its operator does with a registry of heads."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

import typer

from services.cli import options
from services.cli.exits import UsageError

_AGE = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def collect(
    older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE", help="Only blobs written so long ago: 90m, 24h, 7d. Younger ones may be on their way."
        ),
    ] = "24h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    registry: options.Registry = options.REGISTRY,
    operator_secret: Annotated[
        str | None,
        typer.Option(
            envvar="KOLM_OPERATOR_SECRET", metavar="SECRET", help="Where the registry asks operators for one."
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Remove the blobs that no head refers to: uploads that were never published. Safe while the registry serves.

    Heads keep theirs, withdrawn ones too: an auditor may still want to verify them.
    """
    from dataclasses import asdict

    from services.cli.output import data, print_json
    from services.cli.views.registry import collected_view
    from services.client.registry import RegistryClient

    age = _age(older_than)
    with RegistryClient.connect(registry, operator=True, operator_secret=operator_secret) as client:
        collected = client.collect(age, dry_run=dry_run)
    if json:
        print_json(asdict(collected) | {"freed": collected.freed, "dry_run": dry_run})
    else:
        data().print(collected_view(collected, dry_run))


def _age(text: str) -> timedelta:
    match = _AGE.fullmatch(text)
    if match is None:
        raise UsageError(f"--older-than: expected a number and s, m, h or d, for example 24h, got {text!r}")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})
