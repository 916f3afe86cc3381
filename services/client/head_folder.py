"""A head in a folder in kolm's layout: its manifest, and how it is fetched and checked before anything is kept."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from ledger.audit.draft_head_evidence import (
    DraftHeadEvidence,
    PublishedDraftHead,
    check_files,
    check_not_withdrawn,
    verify_draft_head,
)
from ledger.documents.manifests import (
    CONFIG_TYPES,
    HEAD_KINDS,
    WEIGHTS_TYPES,
    DraftHeadManifest,
    HeadConfig,
    HeadWeights,
    NamedFile,
    Vocabulary,
)
from ledger.encoding.canonical import parse_json
from ledger.encoding.document import Count, Members, Positive
from ledger.errors import DraftHeadOfAnotherBase, DraftHeadRefused, DraftHeadUnlogged, DraftHeadWithdrawn, FormatError
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.tlog_proof import TlogProof
from services.client.errors import FailedPrecondition, NotFound
from services.client.ledger.ledger import LedgerClient
from services.client.registry import Head, RegistryClient, download, file_digest

CONFIG_FILE, WEIGHTS_FILE, TRAINING_FILE = "config.json", "model.safetensors", "training.json"
ORIGIN_FILE = "origin.json"
"""In a head's folder that was converted: repository, revision and the digest of each file that it was made from."""

_LARGEST_TEXT = 1024 * 1024

FileProgress = Callable[[NamedFile, int], None]
"""Takes a file and the number of its bytes that have arrived."""


class _Sizes(Members, frozen=True):
    hidden_size: Positive
    feature_layers: tuple[Count, ...]
    vocab_size: Positive
    draft_vocab_size: Positive
    layout: str = ""

    @property
    def kind(self) -> str:
        """The kind of the layout kolm.<kind>.v1; folders in other layouts are refused by the full read."""
        return next((kind for kind in HEAD_KINDS if self.layout == f"kolm.{kind}.v1"), HEAD_KINDS[0])


class HeadFolderInvalid(Exception):
    """The folder is not a head in kolm's layout; the message has the problem and a remedy."""


def manifest_of(folder: Path, base_cid: str, annotations: Mapping[str, str] | None = None) -> DraftHeadManifest:
    """The manifest of a head for this base; the same folder and annotations always give the same one.

    `training.json`, if there is one, has the facts about the head's training; each fact of `origin.json` becomes the
    annotation `origin.NAME`. Raises HeadFolderInvalid.
    """
    try:
        config = _text(folder / CONFIG_FILE)
        sizes = _Sizes.from_document(parse_json(config, CONFIG_FILE))
        manifest = DraftHeadManifest(
            subject=base_cid,
            config=HeadConfig(NamedFile.of(CONFIG_FILE, config), CONFIG_TYPES[sizes.kind]),
            weights=HeadWeights((_named(folder / WEIGHTS_FILE),), WEIGHTS_TYPES[sizes.kind]),
            hidden_size=sizes.hidden_size,
            feature_layers=sizes.feature_layers,
            vocabulary=Vocabulary(sizes.vocab_size, sizes.draft_vocab_size),
            training=_training(folder / TRAINING_FILE),
            annotations=_origin(folder / ORIGIN_FILE) | dict(annotations or {}),
        )
        return DraftHeadManifest.from_bytes(manifest.to_bytes())
    except FormatError as error:
        raise HeadFolderInvalid(f"{folder}: {error}") from error
    except OSError as error:
        raise HeadFolderInvalid(f"{folder}: cannot read {error.filename}: {error.strerror}") from None


def training_of(folder: Path) -> dict[str, Any]:
    """The facts about a head's training, empty if its folder holds none. Raises HeadFolderInvalid."""
    try:
        return _training(folder / TRAINING_FILE)
    except FormatError as error:
        raise HeadFolderInvalid(f"{folder}: {error}") from error
    except OSError as error:
        raise HeadFolderInvalid(f"{folder}: cannot read {error.filename}: {error.strerror}") from None


def _training(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    facts = parse_json(_text(path), TRAINING_FILE)
    if not isinstance(facts, dict):
        raise FormatError(TRAINING_FILE, "expected a JSON object")
    return facts


def _origin(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    facts = parse_json(_text(path), ORIGIN_FILE)
    if not isinstance(facts, dict) or not all(isinstance(fact, str) for fact in facts.values()):
        raise FormatError(ORIGIN_FILE, "expected a JSON object of texts")
    return {f"origin.{name}": fact for name, fact in facts.items()}


def _text(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_LARGEST_TEXT + 1)
    if len(data) > _LARGEST_TEXT:
        raise FormatError(path.name, f"is larger than {_LARGEST_TEXT} bytes")
    return data


def _named(path: Path) -> NamedFile:
    return NamedFile(path.name, path.stat().st_size, file_digest(path))


def find_head(
    registry: RegistryClient, ledger: LedgerClient, trusted: TrustedKeys, reference: str, base_cid: str | None
) -> tuple[DraftHeadEvidence, PublishedDraftHead]:
    """The head that a reference names, verified: the registry is not trusted.

    Raises KolmError, DraftHeadRefused. A reference to a head of another base is DraftHeadOfAnotherBase, never a miss.
    """
    head = _resolve(registry, reference, base_cid)
    evidence, published = _proven(head, reference, ledger, trusted, base_cid)
    check_withdrawals(ledger, head.head_cid)
    return evidence, published


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """A block that one process at a time is in, for its folder, which is made; the others wait. The lock is the
    folder's own, and ends with its process. Does not wait where the file system has no locks. Raises OSError.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        try:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), folder.stat()):  # or else the other has removed it
                    break
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
    try:
        yield
    finally:
        os.close(handle)


def fetch_head(
    registry: RegistryClient,
    evidence: DraftHeadEvidence,
    published: PublishedDraftHead,
    folder: Path,
    progress: FileProgress = lambda file, position: None,
) -> None:
    """Fetch a head's files into `folder`, verified, with the evidence, in a block `alone_in` it. Skips files that are
    there.

    Raises KolmError, DraftHeadDamaged, OSError.
    """
    for file in published.manifest.files:
        download(registry, file, folder / file.name, partial(progress, file))
    check_files(published.manifest, folder)
    evidence.write(folder)


def check_withdrawals(ledger: LedgerClient, head_cid: str) -> None:
    """Raises DraftHeadWithdrawn if the log holds a withdrawal of the head, KolmError."""
    with ledger.watch(kinds=["head_withdrawal"]) as entries:
        check_not_withdrawn(head_cid, (entry.entry for entry in entries))


def _resolve(registry: RegistryClient, reference: str, base_cid: str | None) -> Head:
    try:
        return registry.resolve(reference, base_cid=base_cid)
    except FailedPrecondition as error:
        if error.reason != "HEAD_WITHDRAWN":
            raise
        raise DraftHeadWithdrawn(error.message) from error
    except NotFound:
        if base_cid is None or not reference:
            raise
        other = registry.resolve(reference, include_withdrawn=True)
        raise DraftHeadOfAnotherBase(f"{reference} is for the base {other.base_cid}, not for {base_cid}") from None


def _proven(
    head: Head, reference: str, ledger: LedgerClient, trusted: TrustedKeys, base_cid: str | None
) -> tuple[DraftHeadEvidence, PublishedDraftHead]:
    """Verify a head by the first valid publication under the name that was asked for."""
    refused: DraftHeadRefused = DraftHeadUnlogged(
        f"{head.head_cid}: the registry shows no publication of it as {reference}"
    )
    for publication in head.publications:
        try:
            evidence = DraftHeadEvidence(head.manifest, _proof(ledger, publication.ledger_index))
            published = verify_draft_head(evidence, trusted, base_cid)
        except DraftHeadRefused as error:
            refused = error
            continue
        if answers(published, reference):
            return evidence, published
    raise refused


def _proof(ledger: LedgerClient, index: int) -> TlogProof:
    try:
        proven, entry = ledger.inclusion_proof(index), ledger.entry(index)
    except NotFound as error:
        raise DraftHeadUnlogged(f"its publication should be entry {index}, which the ledger does not hold") from error
    return TlogProof(index, proven.inclusion_proof.hashes, proven.checkpoint, entry.entry)


def answers(published: PublishedDraftHead, reference: str) -> bool:
    """Whether a reference names this head, independently of the registry. The empty reference names any head."""
    if reference.startswith("cidv1:"):
        return published.cid == reference
    name, _, digits = reference.partition("@sha256:")
    return name in ("", published.publication.name) and published.cid.startswith(f"cidv1:sha256:{digits}")
