"""`kolm ledger export`: the log or a part of it, as a bundle, a proof file or tiles; completely or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from ledger.bundle.draft_heads import draft_head_file, named_draft_heads
from ledger.bundle.folder import BundleFolder, add_file, archive, unpack
from ledger.bundle.layout import TRANSCRIPT, BundleFile
from ledger.bundle.tiles import CHECKPOINT, TileFolder, export_tiles
from ledger.durable_file import DRAFT, move_durably, remove_drafts
from ledger.errors import LedgerError
from ledger.tree.tlog_proof import TlogProof
from services.cli.frame import options
from services.cli.frame.exits import Failed, UsageError
from services.cli.frame.options import ledger_at, registry_at
from services.cli.frame.output import answer, print_json, remark
from services.cli.frame.values import expect_new, expect_parent
from services.cli.frame.views import Styled
from services.client.errors import KolmError, NotFound
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.log import SignedCheckpoint
from services.client.registry import RegistryClient

TAR_GZ, TAR = (".tar.gz", ".tgz"), (".tar",)
ARCHIVES = (*TAR_GZ, *TAR)
"""Endings of archive names; any other name is a folder's."""

_OTHER_ARCHIVES = frozenset((".gz", ".zip", ".xz", ".bz2", ".zst", ".7z", ".rar", ".txz", ".tbz2", ".tzst"))


def export(
    path: Annotated[
        Path,
        Argument(
            help="A new folder, .tar.gz or .tar, or (with --receipt) a .tlog-proof file. For tiles a folder, new or "
            "written by this command before."
        ),
    ],
    format_name: Annotated[
        Literal["bundle", "tiles"],
        Option(
            "--format",
            help="A bundle, or the log as C2SP tlog-tiles for any web server, of which only new ones are written.",
        ),
    ] = "bundle",
    receipt: Annotated[
        list[str] | None, Option("--receipt", help="Only these receipts, with the entries to verify them.")
    ] = None,
    start: Annotated[
        int | None, Option(min=0, max=options.MOST_ENTRIES, help="Only entries from this index on.")
    ] = None,
    end: Annotated[int | None, Option(min=0, max=options.MOST_ENTRIES, help="Only entries before this index.")] = None,
    content: Annotated[bool, Option("--content", help="Include prompts and outputs unless erased or damaged.")] = False,
    ledger: options.Ledger = options.LEDGER,
    registry: options.Registry = options.REGISTRY,
    json: options.Json = False,
) -> None:
    """Write a bundle for `kolm verify`: the whole log, a range of it, or some receipts.

    The registry adds the manifests of the heads that the receipts name; missing ones are listed.
    """
    receipts = tuple(receipt or ())
    if format_name == "tiles":
        if receipts or content or (start, end) != (None, None):
            raise UsageError("--format tiles: writes the whole log without content; leave the other flags out")
        return _write_tiles(path, ledger, json)
    expect_parent("PATH", path)
    check_new("PATH", path)
    missing: tuple[str, ...] = ()
    if path.suffix == ".tlog-proof":
        if len(receipts) != 1:
            raise UsageError("a .tlog-proof is about one receipt: name it with --receipt")
        export_proof_to(path, ledger, receipts[0])
    else:
        wanted = BundleRequest(receipts, start, end, content)
        missing = export_bundle_to(path, ledger, registry, wanted)
    if json:
        return print_json({"path": str(path), "missing": missing})
    for absent in missing:
        remark((Styled("not in the bundle:", "yellow"), f" {absent}"))
    remark(f"wrote {path}")


@dataclass(frozen=True, slots=True)
class BundleRequest:
    """Receipts, or the entries from `start` up to `end`; content, for auditors and the receipts' own tenant.

    `transcript` are the bytes of the conversation that the receipts are about.
    """

    receipts: tuple[str, ...] = ()
    start: int | None = None
    end: int | None = None
    content: bool = False
    transcript: bytes | None = None


def check_new(flag: str, path: Path) -> None:
    """Raises UsageError unless a bundle can be written there: a new file or folder, or an empty one."""
    expect_new(flag, path, "name a new file, or a new or empty folder")
    if path.suffix in _OTHER_ARCHIVES and not path.name.endswith(ARCHIVES):
        raise UsageError(f"{path.name}: no archive that `kolm verify` reads", "write .tar.gz, .tar, or a folder")


def export_bundle_to(path: Path, ledger: str, registry: str, wanted: BundleRequest) -> tuple[str, ...]:
    """Write a bundle, with the manifests of its heads: an archive if the name ends like one, else a folder.

    Returns a line with the reason for each missing manifest. Raises KolmError, Failed, FormatError, StoreError.
    """
    with draft_of(path) as draft:
        with (
            ledger_at(ledger) as client,
            draft.open("wb") as file,
            client.export(
                wanted.receipts, start_index=wanted.start, end_index=wanted.end, include_content=wanted.content
            ) as pieces,
        ):
            file.writelines(pieces)
        with tempfile.TemporaryDirectory(dir=draft.parent, prefix=".export.") as folder:
            unpacked = BundleFolder(Path(folder) / "bundle")
            unpacked.folder.mkdir()
            unpack(draft, unpacked.folder, bounded_by_its_size=False)  # repetitive prompts expand much
            absent = _add_manifests(unpacked, registry)
            if wanted.transcript is not None:
                add_file(unpacked.folder, BundleFile(TRANSCRIPT, wanted.transcript))
            if path.name.endswith(ARCHIVES):
                with draft.open("wb") as out:
                    out.writelines(archive(unpacked.files(), compressed=path.name.endswith(TAR_GZ)))
                move_durably(draft, path)
            else:
                move_durably(unpacked.folder, path)
    return absent


def _add_manifests(bundle: BundleFolder, registry: str) -> tuple[str, ...]:
    """Add the manifests that the registry has; returns a line with the reason for each missing one.

    A manifest with a wrong digest is left out, so the registry need not be trusted. Raises FormatError for a damaged
    bundle, StoreError.
    """
    heads = named_draft_heads(bundle)
    if not heads:
        return ()
    with registry_at(registry) as client:
        return tuple(why for head in heads if (why := _add_manifest(bundle, head, client, registry)) is not None)


def _add_manifest(bundle: BundleFolder, head: str, client: RegistryClient, registry: str) -> str | None:
    """Add a head's manifest; returns None, or the reason why it is missing."""
    name = f"the manifest of {head}"
    try:
        file = draft_head_file(head, client.head(head).manifest)
    except NotFound:
        return f"{name}, a head that was not published, as one from a folder; all else verifies without it"
    except KolmError as error:
        return f"{name}: the registry at {registry} does not answer ({error.message}); name it with --registry"
    except LedgerError as error:
        return f"{name}: the registry at {registry} gave something else: {error}"
    add_file(bundle.folder, file)
    return None


def export_proof_to(path: Path, ledger: str, receipt: str) -> None:
    """A tlog-proof with the receipt's entry as its extra data. Raises KolmError, Failed."""
    with ledger_at(ledger) as client:
        proof = proof_of(client, client.receipt(receipt).receipt.index)
    with draft_of(path) as draft:
        draft.write_bytes(proof.to_bytes())
        move_durably(draft, path)


def proof_of(client: LedgerClient, index: int) -> TlogProof:
    """A proof that the newest tree holds an entry, with the entry as extra data. Raises KolmError."""
    entry = client.entry(index).entry
    proven = client.inclusion_proof(index)
    newest = client.checkpoint()
    # The newest checkpoint is the same one with its cosignatures, unless the log has grown in between.
    same = newest.tree_size == proven.inclusion_proof.tree_size
    return TlogProof(index, proven.inclusion_proof.hashes, newest.note if same else proven.checkpoint, entry)


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """A temporary file next to `path`, deleted at the end."""
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


def _write_tiles(folder: Path, ledger: str, json: bool) -> None:
    """Raises ProofError for a log that does not extend the folder's, which then stays as it is; UsageError, KolmError,
    FormatError, NotFound, StoreError.
    """
    tiles = TileFolder(folder)
    published = tiles.published()
    names = [each.name for each in folder.iterdir()] if folder.exists() else []
    if any(name.lstrip(".") not in (CHECKPOINT, "tile") and not name.startswith(DRAFT) for name in names):
        raise UsageError(f"{folder} holds other files than tiles", "name a new or empty folder")
    remove_drafts(folder)
    with ledger_at(ledger) as client:
        checkpoint = _newest(client, published.size)
        with client.watch(published.start) as watched:
            tiles.write(export_tiles((each.entry for each in watched), checkpoint.note, published))
    written = {"before": published.size, "size": checkpoint.tree_size}  # entries that the folder shows
    new = checkpoint.tree_size - published.size
    answer(json, written, lambda _: f"{folder} has {checkpoint.tree_size} entries, {new} of them new")


def _newest(client: LedgerClient, size: int) -> SignedCheckpoint:
    """The newest checkpoint with enough cosignatures, or the newest one if the folder is beyond that."""
    try:
        witnessed = client.checkpoint(witnessed=True)
    except NotFound:
        return client.checkpoint()
    return witnessed if witnessed.tree_size >= size else client.checkpoint()
