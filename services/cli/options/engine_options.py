"""Options of the engine that an audit computes with, which `kolm audit run` and `kolm replay` share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.options import options
from services.cli.values.named_files import named_adapters

if TYPE_CHECKING:
    from services.auditor.examination import EnginePlan


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The values that the audited server has."""

    adapter: options.Adapters = None
    context_length: Annotated[
        int | None, typer.Option(min=1, metavar="TOKENS", help="The server's, where it was given one.")
    ] = None
    cache_dtype: Annotated[
        str | None, typer.Option(metavar="float32|bfloat16", help="The server's, where not float32.")
    ] = None
    arithmetic: Annotated[str | None, typer.Option(metavar="float32|int8", help="The server's, where not float32.")] = (
        None
    )

    def plan(self, model: Path) -> EnginePlan:
        """Raises UsageError for an adapter without a name."""
        from services.auditor.examination import EnginePlan

        return EnginePlan(
            model, named_adapters(self.adapter or ()), self.context_length, self.cache_dtype, self.arithmetic
        )


ENGINE = EngineOptions()
