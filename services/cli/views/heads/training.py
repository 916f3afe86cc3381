"""The result of a training run: the head's acceptance on held-out prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from services.cli.terminal.output import table

if TYPE_CHECKING:
    from services.training.kscore import Measured
    from services.training.plan import Job


def trained_json(job: Job, found: Mapping[str, Measured]) -> dict[str, Any]:
    """The head's folder, its drafts' depth, and its acceptance by domain."""
    figures = {
        domain: {
            "tokens": each.tokens,
            "mean_length": each.mean_acceptance_length,
            "by_depth": list(each.acceptance_by_depth),
        }
        for domain, each in found.items()
    }
    return {"head": str(job.out), "k": job.k, "held_out_acceptance": figures}


def trained_view(job: Job, found: Mapping[str, Measured]) -> RenderableType:
    """Its acceptance, and how to publish it."""
    return Group(acceptance_table(found), Text(f"{job.out}\nkolm heads push {job.out} --name NAME publishes it"))


def acceptance_table(found: Mapping[str, Measured]) -> Table:
    """Held-out acceptance by domain: mean length, and the share of drafts accepted to each depth."""
    depths = max((len(each.acceptance_by_depth) for each in found.values()), default=0)
    names = [f"depth {depth}" for depth in range(1, depths + 1)]
    made = table("domain", "tokens", "mean length", *names, right=("tokens", "mean length", *names))
    for domain, each in found.items():
        shares = [f"{share:.0%}" for share in each.acceptance_by_depth]
        made.add_row(domain, f"{each.tokens:,}", f"{each.mean_acceptance_length:.2f}", *shares)
    return made
