"""Options of the model and of its draft methods, which `kolm up` hands on to its services."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from services.cli.options import options
from services.cli.values.named_files import expect_folder, named_adapters
from services.generation.target.model_path import HEAD_FOLDER, STORE_FOLDER


@dataclass(frozen=True, slots=True)
class ServedOptions:
    """Options of what the generation service loads, and with it the auditor."""

    model: options.Model = options.MODEL
    adapter: options.Adapters = None
    head: Annotated[
        list[str] | None,
        typer.Option(metavar="HEAD", help="Draft head: a reference, or a folder. Default: the registry's newest."),
    ] = None
    context_length: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="TOKENS", help="Longest prompt with its output. Default: the model's own, at most 8192."
        ),
    ] = None
    cache_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory for keys, values and cached prefixes, such as 4GiB. Default: 1GiB."),
    ] = None
    cache_dtype: Annotated[
        Literal["float32", "bfloat16"] | None, typer.Option(help="What keys and values are kept in.")
    ] = None
    arithmetic: Annotated[
        Literal["float32", "int8"] | None, typer.Option(help="Of linear layers with quantised weights (GGUF).")
    ] = None
    draft_model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|GGUF|NAME",
            callback=options.found_model,
            help="A smaller model, for the method draft.",
        ),
    ] = None
    shared_datastore: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Datastore for the method rest, for all tenants; may be repeated."),
    ] = None
    beside: Annotated[
        bool, typer.Option(help="Use the head, the adapters and the datastore beside the model, where none is named.")
    ] = True

    def adapters_beside(self) -> dict[str, Path]:
        """By name; empty where somebody named adapters or wants none."""
        from services.generation.target.beside import adapters_beside

        return {} if self.adapter or not self.beside else adapters_beside(self.model)

    def auditor_flags(self, found: dict[str, Path]) -> tuple[str, ...]:
        """Flags that the auditor and the server share; `found` are adapters that nobody named."""
        from services.cli.jobs.running.command_words import words

        return words(
            adapter=[f"{name}={folder}" for name, folder in (named_adapters(self.adapter or ()) or found).items()],
            context_length=self.context_length,
            cache_dtype=self.cache_dtype,
            arithmetic=self.arithmetic,
        )

    def server_flags(self) -> tuple[str, ...]:
        """Flags of the generation service alone. Raises UsageError for folders that are missing."""
        from services.cli.jobs.running.command_words import words

        _check_folders(self.head or [], self.shared_datastore or [])
        return words(
            head=self.head,
            no_beside=not self.beside,
            cache_bytes=self.cache_bytes,
            draft_model=self.draft_model,
            shared_datastore=self.shared_datastore,
        )


SERVED = ServedOptions()


def _check_folders(heads: list[str], datastores: list[Path]) -> None:
    """Raises UsageError for one that is not there, or holds something else."""
    for store in datastores:
        expect_folder("--shared-datastore", store, STORE_FOLDER)
    for head in heads:
        if "/" in head:
            expect_folder("--head", Path(head), HEAD_FOLDER)
