"""Models: the names of them, and one in full."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from services.cli.terminal.output import size, table
from services.client.registry import Head

if TYPE_CHECKING:
    from services.cli.jobs.models import ModelDescription
    from services.generation.target.model_path import NamedModel


def models_json(models: Iterable[NamedModel]) -> list[dict[str, Any]]:
    """`path` is null for a package that is not installed."""
    return [
        {"name": model.name, "from": model.origin, "path": None if model.path is None else str(model.path)}
        for model in models
    ]


def models_view(models: Iterable[NamedModel]) -> RenderableType:
    """One line for each name."""
    made = table("name", "from", "path")
    for model in models:
        where = "[yellow]not installed[/]" if model.path is None else escape(str(model.path))
        made.add_row(escape(model.name), model.origin, where)
    return made


def model_json(found: ModelDescription, heads: Sequence[Head] | None) -> dict[str, Any]:
    """Sizes in bytes; `heads` is null where no registry was asked."""
    described = {**asdict(found), "path": str(found.path), "parameters": found.parameters}
    return {**described, "heads": None if heads is None else [head.head_cid for head in heads]}


def model_view(found: ModelDescription, heads: Sequence[Head] | None) -> RenderableType:
    """The same for people."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(overflow="fold")
    stored = ", ".join(f"{name} {count / found.parameters:.0%}" for name, count in found.storages.items())
    cached = f"{size(found.cache_bytes)} of cache for {found.context_length:,} tokens"
    rows = [
        ("path", escape(str(found.path))),
        ("family", f"{found.family}, {found.layers} layers of {found.hidden_size}, vocabulary {found.vocab_size:,}"),
        ("weights", f"{found.parameters / 1e6:.0f} M, stored as {stored}"),
        ("context", f"{found.model_context_length:,} tokens"),
        ("memory", f"{size(found.weight_bytes)} of weights, {cached}"),
        ("arithmetic", found.arithmetic),
        ("base", found.base_cid),
        ("tokenizer", found.tokenizer_cid),
    ]
    if heads is not None:
        rows.append(
            ("heads", "\n".join(f"{escape(', '.join(head.names))} {head.head_cid}" for head in heads) or "none")
        )
    for name, value in rows:
        grid.add_row(name, value)
    return grid
