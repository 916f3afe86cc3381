"""`kolm datastore`: datastores for the method rest; built, shown, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.failures.exits import UsageError
from services.cli.options import options

Store = Annotated[Path, typer.Argument(help="A datastore's folder.")]
Base = Annotated[Path, options.model("--base", "The base whose tokenizer it uses.")]


def build(
    paths: Annotated[list[Path], typer.Argument(help="Files and folders: text, Markdown, JSON lines, HTML.")],
    out: Annotated[Path, typer.Option(help="Folder for the datastore; must not exist.")],
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Leave out files and folders of this name, as in *.css; may be repeated."),
    ] = None,
    base: Base = options.MODEL,
    shard_tokens: Annotated[int, typer.Option(min=1000, help="Tokens of a shard; more need more memory.")] = 4_000_000,
    passage_tokens: Annotated[int, typer.Option(min=8, help="Tokens of a passage.")] = 128,
    json: options.Json = False,
) -> None:
    """Tokenize, sort suffixes, embed passages. The folder appears once it is complete."""
    if missing := [str(path) for path in paths if not path.exists()]:
        raise UsageError(f"{', '.join(missing)}: No such file or directory; expected files and folders of text")

    from services.cli.jobs import datastore
    from services.cli.terminal.output import answer
    from services.cli.views.datastore import manifest_json, manifest_view
    from services.datastores.builder import BuildParameters

    manifest = datastore.build(paths, exclude or [], base, out, BuildParameters(shard_tokens, passage_tokens))
    answer(
        json, lambda: manifest_json(out, manifest, verified=False), lambda: manifest_view(out, manifest, verified=False)
    )


def show(
    store: Store,
    verify: Annotated[
        bool, typer.Option("--verify", help="Hash every file again. Exit code 3, and the file's name, if one changed.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Show what a datastore holds and what it was built with."""
    from services.cli.jobs import datastore
    from services.cli.terminal.output import answer
    from services.cli.views.datastore import manifest_json, manifest_view

    manifest = datastore.verify(store) if verify else datastore.read(store)
    answer(
        json,
        lambda: manifest_json(store, manifest, verified=verify),
        lambda: manifest_view(store, manifest, verified=verify),
    )
