"""`kolm corpus`: datastores for the method rest; built, shown, checked, searched."""

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
    embedding_layer: Annotated[
        int, typer.Option(min=0, help="Layers of the base that passages go through to be embedded; 0 is fastest.")
    ] = 0,
    embedder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Embed with this sentence-transformers directory instead.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Tokenize, sort suffixes, embed passages. The folder appears once it is complete."""
    if missing := [str(path) for path in paths if not path.exists()]:
        raise UsageError(f"{', '.join(missing)}: No such file or directory; expected files and folders of text")

    from services.cli.jobs import datastore
    from services.cli.terminal.output import answer
    from services.cli.views.datastore import manifest_json, manifest_view
    from services.datastores.builder import BuildParameters

    parameters = BuildParameters(shard_tokens, passage_tokens, embedding_layer)
    manifest = datastore.build(paths, exclude or [], base, out, parameters, embedder)
    answer(json, lambda: manifest_json(out, manifest), lambda: manifest_view(out, manifest))


def show(store: Store, json: options.Json = False) -> None:
    """Show what a datastore holds and what it was built with."""
    from services.cli.jobs import datastore
    from services.cli.terminal.output import answer
    from services.cli.views.datastore import manifest_json, manifest_view

    manifest = datastore.read(store)
    answer(json, lambda: manifest_json(store, manifest), lambda: manifest_view(store, manifest))


def verify(store: Store, json: options.Json = False) -> None:
    """Hash every file again. Exit code 3, and the file's name, if one has changed."""
    from services.cli.jobs import datastore
    from services.cli.terminal.output import answer
    from services.cli.views.datastore import verified_json, verified_view

    manifest = datastore.verify(store)
    answer(json, lambda: verified_json(store, manifest), lambda: verified_view(store, manifest))


def search(
    store: Store,
    text: Annotated[str, typer.Argument(help="The text to continue.")],
    base: Base = options.MODEL,
    tokens: Annotated[int, typer.Option(min=1, max=64, help="Tokens of a continuation.")] = 8,
    count: Annotated[int, typer.Option(min=1, max=64, help="Continuations at most.")] = 10,
    json: options.Json = False,
) -> None:
    """Show how the datastore continues a text: what follows its longest ending that occurs, most frequent first."""
    from services.cli.jobs import datastore
    from services.cli.terminal.output import answer
    from services.cli.views.datastore import found_view

    found = datastore.search(store, base, text, tokens, count)
    answer(json, lambda: found, lambda: found_view(found))
