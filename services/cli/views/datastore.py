"""Datastores: what one holds, and what a search in it found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from services.cli.terminal.output import counted, facts, table
from services.cli.terminal.steering import printable

if TYPE_CHECKING:
    from services.generation.drafting.retrieval.manifest import Manifest


def manifest_json(store: Path, manifest: Manifest) -> dict[str, Any]:
    """Sizes in bytes."""
    return {
        "store": str(store),
        "cid": manifest.cid,
        "tokenizer_cid": manifest.tokenizer_cid,
        "vocab_size": manifest.vocab_size,
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "shards": len(manifest.shards),
        "bytes": sum(blob.size for blob in manifest.blobs),
        "embedding": manifest.embedding.to_document(),
        "parameters": manifest.parameters,
    }


def manifest_view(store: Path, manifest: Manifest) -> RenderableType:
    """Its contents and its parameters."""
    return facts(
        ("store", escape(str(store))),
        ("cid", manifest.cid),
        ("tokenizer", manifest.tokenizer_cid),
        ("documents", f"{manifest.documents:,}"),
        ("tokens", f"{manifest.tokens:,} in {counted(len(manifest.shards), 'shard')}"),
        ("on disk", f"{sum(blob.size for blob in manifest.blobs) / 1e6:,.1f} MB"),
        ("embedded by", escape(str(manifest.embedding))),
        ("built with", ", ".join(f"{key} {value}" for key, value in sorted(manifest.parameters.items()))),
    )


def verified_json(store: Path, manifest: Manifest) -> dict[str, Any]:
    """A datastore whose files are those of its manifest."""
    return {"store": str(store), "cid": manifest.cid, "files": len(manifest.blobs), "ok": True}


def verified_view(store: Path, manifest: Manifest) -> RenderableType:
    """The same for people."""
    said = f"{store}: {len(manifest.blobs)} files as in the manifest\n{manifest.cid}"
    return Text.assemble(("✓", "green"), f" {said}")


def found_view(found: dict[str, Any]) -> RenderableType:
    """The continuations by frequency."""
    if not found["continuations"]:
        return Text("no ending of this text occurs in the datastore")
    made = table("count", "goes on", right=("count",))
    for each in found["continuations"]:
        made.add_row(str(each["count"]), Text(repr(printable(each["text"]))))
    return Group(Text(f"after {printable(found['matched'])!r} ({found['matched_tokens']} tokens):"), made)
