"""Writing what a ledger service exports: whole, or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ledger.bundle_archive import unpack, write_folder
from ledger.tiles_export import export_tiles
from ledger.tlog_proof import TlogProof
from services.cli.exits import Failed
from services.client import LedgerClient


def export_bundle_to(
    path: Path,
    ledger: str,
    receipts: tuple[str, ...],
    span: tuple[int | None, int | None],
    *,
    content: bool,
    secret: str | None,
) -> None:
    """A bundle of receipts, or of the entries from span[0] up to span[1], as a .tar.gz or as a folder.

    Raises KolmError, Failed, FormatError.
    """
    packed = path.name.endswith((".tar.gz", ".tgz"))
    with LedgerClient.connect(ledger, auditor=content, auditor_secret=secret) as client, _draft(path) as draft:
        pieces = client.export(receipts, start_index=span[0], end_index=span[1], include_content=content)
        with draft.open("wb") as file, pieces:
            for piece in pieces:
                file.write(piece)
        if packed:
            os.replace(draft, path)
        else:
            path.mkdir(parents=True, exist_ok=True)
            unpack(draft, path)


def export_proof_to(path: Path, ledger: str, receipt: str) -> None:
    """A tlog-proof with the receipt's entry as its extra data. Raises KolmError, Failed."""
    with LedgerClient.connect(ledger) as client:
        index = client.receipt(receipt).receipt.index
        entry = client.entry(index).entry
        proven = client.inclusion_proof(index)
        checkpoint = proven.checkpoint
        newest = client.checkpoint()
        if newest.tree_size == proven.proof.tree_size:
            checkpoint = newest.note  # the same, with its cosignatures
        proof = TlogProof(index, tuple(proven.proof.hashes), checkpoint, entry)
    with _draft(path) as draft:
        draft.write_bytes(proof.to_bytes())
        os.replace(draft, path)


def export_tiles_to(path: Path, ledger: str) -> None:
    """The whole log as static files. Raises KolmError, StoreError, ProofError where the log does not hold together."""
    with LedgerClient.connect(ledger) as client:
        checkpoint = client.checkpoint()
        with client.watch(0) as entries:
            write_folder(export_tiles((entry.entry for entry in entries), checkpoint.note), path)


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """A file beside `path` that is gone at the end."""
    folder = path.parent if path.parent.is_dir() else Path(tempfile.gettempdir())
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=".export.")
        os.close(handle)
    except OSError as error:
        raise Failed(f"cannot write to {folder}: {error.strerror}") from None
    draft = Path(name)
    try:
        yield draft
    except OSError as error:
        raise Failed(f"cannot write {path}: {error.strerror}") from None
    finally:
        draft.unlink(missing_ok=True)
