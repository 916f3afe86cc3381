"""Writing what a ledger service exports: whole, or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ledger.bundle.folder import BundleFolder
from ledger.bundle.tar_archive import archive, unpack, write_folder
from ledger.bundle.tlog_tiles import export_tiles
from ledger.bundle.zip_archive import write_zip
from ledger.tree.tlog_proof import TlogProof
from services.cli.exits import Failed
from services.cli.jobs.ledger.bundle_manifests import add_manifests
from services.client import LedgerClient

TAR_GZ, TAR, ZIP = (".tar.gz", ".tgz"), (".tar",), (".zip",)
ARCHIVES = (*TAR_GZ, *TAR, *ZIP)
"""Endings of names that mean an archive; any other name is a folder's."""


@dataclass(frozen=True, slots=True)
class BundleRequest:
    """Receipts, or the entries from span[0] up to span[1]; content for whoever brings the auditors' secret."""

    receipts: tuple[str, ...] = ()
    span: tuple[int | None, int | None] = (None, None)
    content: bool = False
    secret: str | None = None


def export_bundle_to(path: Path, ledger: str, registry: str, wanted: BundleRequest) -> tuple[str, ...]:
    """A bundle as an archive, if the name says so, else as a folder; with the manifests of the heads that it names.

    Returns, in words, which manifests are not in it and why. Raises KolmError, Failed, FormatError, StoreError.
    """
    with _draft(path) as draft:
        _download(draft, ledger, wanted)
        with tempfile.TemporaryDirectory(dir=draft.parent, prefix=".export.") as folder:
            unpacked = BundleFolder(Path(folder) / "bundle")
            unpacked.folder.mkdir()
            unpack(draft, unpacked.folder)
            absent = add_manifests(unpacked, registry)
            if path.name.endswith(ARCHIVES):
                with draft.open("wb") as out:
                    _pack(unpacked, path.name, out)
                os.replace(draft, path)
            else:
                os.replace(unpacked.folder, path)
    return absent


def _download(draft: Path, ledger: str, wanted: BundleRequest) -> None:
    with LedgerClient.connect(ledger, auditor=wanted.content, auditor_secret=wanted.secret) as client:
        start, end = wanted.span
        pieces = client.export(wanted.receipts, start_index=start, end_index=end, include_content=wanted.content)
        with draft.open("wb") as file, pieces:
            for piece in pieces:
                file.write(piece)


def _pack(bundle: BundleFolder, name: str, out: BinaryIO) -> None:
    if name.endswith(ZIP):
        write_zip(bundle.files(), out)
    else:
        out.writelines(archive(bundle.files(), compressed=name.endswith(TAR_GZ)))


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
    folder = path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
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
