"""Datastores for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from services.cli.output import data, printable, table
from services.generation.drafting.retrieval.manifest import Manifest


def show_manifest(store: Path, manifest: Manifest) -> None:
    size = sum(blob.size for blob in manifest.blobs)
    shown = table("", "")
    shown.show_header = False
    for name, value in (
        ("store", str(store)),
        ("cid", manifest.cid),
        ("tokenizer", manifest.tokenizer_cid),
        ("documents", f"{manifest.documents:,}"),
        ("tokens", f"{manifest.tokens:,} in {len(manifest.shards)} shards"),
        ("on disk", f"{size / 1e6:,.1f} MB"),
        ("embedded by", str(manifest.embedding)),
        ("built with", ", ".join(f"{key} {value}" for key, value in manifest.parameters.items())),
    ):
        shown.add_row(name, value)
    data().print(shown)


def show_found(found: dict[str, Any]) -> None:
    if not found["continuations"]:
        data().print("no end of this text occurs in the datastore")
        return
    data().print(f"after {printable(found['matched'])!r} ({found['matched_tokens']} tokens):", markup=False)
    shown = table("count", "goes on", right=("count",))
    for each in found["continuations"]:
        shown.add_row(str(each["count"]), repr(printable(each["text"])).replace("[", r"\["))
    data().print(shown)
