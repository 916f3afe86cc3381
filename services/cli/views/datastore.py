"""Datastores: what one holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.markup import escape

from services.cli.terminal.output import counted, facts

if TYPE_CHECKING:
    from services.generation.drafting.retrieval.manifest import Manifest


def manifest_json(store: Path, manifest: Manifest, *, verified: bool) -> dict[str, Any]:
    """Sizes in bytes. `verified` says that every file was hashed again, and is as the manifest says."""
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
        "verified": verified,
    }


def manifest_view(store: Path, manifest: Manifest, *, verified: bool) -> RenderableType:
    """Its contents and its parameters."""
    return facts(
        ("store", escape(str(store))),
        ("cid", manifest.cid),
        ("tokenizer", manifest.tokenizer_cid),
        ("documents", f"{manifest.documents:,}"),
        ("tokens", f"{manifest.tokens:,} in {counted(len(manifest.shards), 'shard')}"),
        ("on disk", f"{sum(blob.size for blob in manifest.blobs) / 1e6:,.1f} MB"),
        ("embedded by", manifest.embedding.cid),
        ("built with", ", ".join(f"{key} {value}" for key, value in sorted(manifest.parameters.items()))),
        *([("verified", f"[green]✓[/] {counted(len(manifest.blobs), 'file')} as in the manifest")] if verified else []),
    )
