"""The draft heads that the receipts of a bundle name, and their manifests, which may be added to it.

A manifest is named by the digest of its bytes, so its source does not matter; the ledger keeps none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from ledger.bundle import layout
from ledger.bundle.layout import BundleFile, BundleFiles, split_lines
from ledger.documents.manifests import DraftHeadManifest
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import payload_type, read_document
from ledger.encoding.text_forms import cid
from ledger.errors import FormatError, ProofError
from ledger.tree.entry import Entry

_PREFIX = "cidv1:sha256:"
_MOST_NAMED = 3
"""The most draft heads that a line of a report names."""


def named_draft_heads(bundle: BundleFiles) -> tuple[str, ...]:
    """The draft heads that the bundle's receipts name, sorted. Checks no signature and no proof.

    Raises FormatError for a malformed bundle.
    """
    heads: set[str | None] = set()
    for path in bundle.paths():
        if path.startswith("entries/"):
            heads.update(_draft_head_of(line) for line in split_lines(bundle.read(path), path))
    return tuple(sorted(head for head in heads if head is not None))


def draft_head_path(head_cid: str) -> str:
    """The path of a draft head's manifest in a bundle."""
    return f"heads/{head_cid.removeprefix(_PREFIX)}.json"


def draft_head_file(head_cid: str, manifest: bytes) -> BundleFile:
    """The bundle's file of a manifest. Raises ProofError for the manifest of another head, FormatError."""
    if cid(manifest) != head_cid:
        raise ProofError(f"the manifest belongs to {cid(manifest)}, not to {head_cid}")
    DraftHeadManifest.from_bytes(manifest)
    file = BundleFile(draft_head_path(head_cid), manifest)
    if len(manifest) > layout.bound_of(file.path):
        raise FormatError("manifest", f"has {len(manifest)} bytes; a bundle allows {layout.bound_of(file.path)}")
    return file


def without(absent: Sequence[str]) -> str:
    """A description of the draft heads without a manifest in a bundle."""
    if not absent:
        return ""
    more = f" and {len(absent) - _MOST_NAMED} more" if len(absent) > _MOST_NAMED else ""
    return f", none of {', '.join(absent[:_MOST_NAMED])}{more}"


def _draft_head_of(line: bytes) -> str | None:
    envelope = Entry.from_bytes(line).envelope
    if envelope.payload_type != payload_type("receipt"):
        return None
    document = read_document(envelope)
    return document.spec_decode.head_cid if isinstance(document, Receipt) else None


def check_draft_head(path: str, data: bytes, bases: Mapping[str, str]) -> None:
    """Compare a manifest with its file's name and with `bases`, the published bases by head. Raises ProofError,
    FormatError.
    """
    name = cid(data)
    if not name.endswith(PurePosixPath(path).stem):
        raise ProofError(f"{path} holds the manifest of another head, {name}")
    subject = DraftHeadManifest.from_bytes(data).subject
    if bases.get(name, subject) != subject:
        raise ProofError(f"the head {name} is for {subject} and was published for {bases[name]}")
