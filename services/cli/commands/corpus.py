"""`kolm corpus`: datastores for the method rest; built, shown, checked, searched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli import options

Store = Annotated[Path, typer.Argument(help="A datastore's folder.")]
Base = Annotated[
    Path,
    typer.Option(
        "--base",
        envvar="KOLM_MODEL",
        metavar="DIR|GGUF|NAME",
        callback=options.found_model,
        help="The base whose tokenizer it speaks.",
    ),
]
_BASE = Path("smollm2")


def build(
    paths: Annotated[list[Path], typer.Argument(help="Files and folders: text, Markdown, JSON lines, HTML.")],
    out: Annotated[Path, typer.Option(help="Folder for the datastore; must not exist.")],
    base: Base = _BASE,
    shard_tokens: Annotated[int, typer.Option(min=1000, help="Tokens of a shard; more need more memory.")] = 4_000_000,
    passage_tokens: Annotated[int, typer.Option(min=8, help="Tokens of a passage.")] = 128,
    embedding_layer: Annotated[
        int, typer.Option(min=0, help="Layers of the base that passages go through to be embedded; 0 takes seconds.")
    ] = 0,
    embedder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Embed with this sentence-transformers directory instead.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Tokenize, sort suffixes, embed passages. The folder appears when all of it is there."""
    from services.cli.jobs import datastore
    from services.cli.output import print_json
    from services.cli.views.datastore import show_manifest
    from services.datastores.builder import BuildParameters

    parameters = BuildParameters(shard_tokens, passage_tokens, embedding_layer)
    manifest = datastore.build(paths, base, out, parameters, embedder)
    if json:
        print_json(datastore.to_json(out, manifest))
    else:
        show_manifest(out, manifest)


def show(store: Store, json: options.Json = False) -> None:
    """What a datastore holds and what it was built with."""
    from services.cli.jobs import datastore
    from services.cli.output import print_json
    from services.cli.views.datastore import show_manifest

    manifest = datastore.read(store)
    if json:
        print_json(datastore.to_json(store, manifest))
    else:
        show_manifest(store, manifest)


def verify(store: Store, json: options.Json = False) -> None:
    """Hash every file again. Exit 3 and the file's name if one has changed."""
    from services.cli.jobs import datastore
    from services.cli.output import data, print_json

    manifest = datastore.verify(store)
    if json:
        print_json({"store": str(store), "cid": manifest.cid, "files": len(manifest.blobs), "ok": True})
    else:
        data().print(
            f"[green]✓[/] {store}: {len(manifest.blobs)} files as in the manifest\n{manifest.cid}", soft_wrap=True
        )


def search(
    store: Store,
    text: Annotated[str, typer.Argument(help="What comes before.")],
    base: Base = _BASE,
    tokens: Annotated[int, typer.Option(min=1, max=64, help="Length of a continuation.")] = 8,
    count: Annotated[int, typer.Option(min=1, max=64, help="Continuations at most.")] = 10,
    json: options.Json = False,
) -> None:
    """How the datastore goes on after a text: after the longest end of it that occurs, most frequent first."""
    from services.cli.jobs import datastore
    from services.cli.output import print_json
    from services.cli.views.datastore import show_found

    found = datastore.search(store, base, text, tokens, count)
    if json:
        print_json(found)
    else:
        show_found(found)
