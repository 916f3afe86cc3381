"""Loads a server's heads at its start: resolves, fetches, verifies and reads them. Blocking.

A head of the registry is loaded only if all five checks of `ledger.audit.draft_head_evidence` hold; one that fails
them is left out, and requests that name it are told why. A folder that is given directly is for development: no
publisher vouches for it, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ledger.audit.draft_head_evidence import DraftHeadEvidence, PublishedDraftHead, check_files, verify_draft_head
from ledger.documents.kscore import THRESHOLD
from ledger.encoding.fields import Fields, checked_number
from ledger.errors import (
    DraftHeadDamaged,
    DraftHeadOfAnotherBase,
    DraftHeadRefused,
    DraftHeadUnlogged,
    DraftHeadUnsigned,
    DraftHeadWithdrawn,
    FormatError,
    LedgerError,
)
from ledger.keys.trusted_keys import TrustedKeys
from services.client import LedgerClient
from services.client.errors import DataLoss, DeadlineExceeded, KolmError, NotFound, Unavailable
from services.client.registry.head_folder import (
    HeadFolderInvalid,
    answers,
    fetch_head,
    find_head,
    manifest_of,
    training_of,
)
from services.client.registry.registry import RegistryClient
from services.generation.drafting.eagle3.checkpoint import HeadError, HeadForAnotherBase
from services.generation.drafting.eagle3.head_pass import Head
from services.generation.drafting.eagle3.loading import load_head
from services.generation.heads.served_heads import RefusedHead, ServedHead
from services.generation.target.config.config import TargetConfig

_log = logging.getLogger(__name__)

_COMING_SECONDS = 2.0
"""For a registry that was started together with this server."""

_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (DraftHeadUnsigned, "HEAD_UNSIGNED"),
    (DraftHeadUnlogged, "HEAD_UNLOGGED"),
    (DraftHeadWithdrawn, "HEAD_WITHDRAWN"),
    (DraftHeadOfAnotherBase, "HEAD_BASE_MISMATCH"),
    (HeadForAnotherBase, "HEAD_BASE_MISMATCH"),
    (DraftHeadDamaged, "HEAD_DAMAGED"),
    (DataLoss, "HEAD_DAMAGED"),
    (HeadError, "HEAD_INVALID"),
    (HeadFolderInvalid, "HEAD_INVALID"),
    (NotFound, "HEAD_NOT_FOUND"),
    (Unavailable, "REGISTRY_UNAVAILABLE"),
    (DeadlineExceeded, "REGISTRY_UNAVAILABLE"),
)


@dataclass(frozen=True, slots=True)
class HeadSources:
    """Where heads come from. `references` in the order of preference; the empty one is the base's newest.

    `cache` keeps what was fetched, by identifier. Without `trusted` keys no published head can be loaded.
    """

    references: tuple[str, ...]
    registry: str
    ledger: str
    cache: Path
    trusted: TrustedKeys


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A head, and its description for requests."""

    served: ServedHead
    head: Head


@dataclass(frozen=True, slots=True)
class LoadedHeads:
    """The outcome for all references."""

    loaded: tuple[LoadedHead, ...] = ()
    refused: tuple[RefusedHead, ...] = ()


def load_heads(sources: HeadSources, base_cid: str, config: TargetConfig) -> LoadedHeads:
    """Every head that may be loaded; the others with their reasons. Two references to one head load it once."""
    loaded: dict[str, LoadedHead] = {}
    refused: list[RefusedHead] = []
    for reference in sources.references:
        try:
            served = (
                _from_folder(Path(reference), base_cid)
                if is_folder(reference)
                else _from_registry(sources, reference, base_cid)
            )
            loaded.setdefault(served.cid, LoadedHead(served, load_head(served.folder, config)))
        except (DraftHeadRefused, HeadError, HeadFolderInvalid, KolmError, LedgerError, OSError) as error:
            refused += _refusal(reference, error)
    for head in loaded.values():
        _log.info("head %s drafts here: %s", head.served.name or head.served.folder, head.served.cid)
    return LoadedHeads(tuple(loaded.values()), tuple(refused))


def load_beside(folder: Path, base_cid: str, config: TargetConfig) -> LoadedHeads:
    """The head in a folder that nobody named; none where it is not for this base, as the log then says."""
    try:
        served = ServedHead(manifest_of(folder, base_cid).cid, folder)
        head = load_head(folder, config)
    except (HeadError, HeadFolderInvalid, OSError) as error:
        _log.info("the head in %s, beside the model, is left out: %s", folder, error)
        return LoadedHeads()
    _log.info("drafting with the head in %s, which lies beside the model; nobody vouches for it", folder)
    return LoadedHeads((LoadedHead(served, head),))


def says_weak(folder: Path) -> bool:
    """Whether a head's own `training.json` tells of a mean acceptance that needs retraining, over answers that it had
    not learned from. That stands until the log has a k-score of it; a head that tells nothing is not judged.
    """
    try:
        told = Fields(training_of(folder).get("held_out_acceptance", {}), "held_out_acceptance")
        depths = [depth for domain in told.names() for depth in Fields(told.read(domain), domain).array("by_depth")]
        shares = [checked_number(share, "by_depth", 0.0, 1.0) for share in depths]
    except (FormatError, HeadFolderInvalid) as error:
        _log.warning("what the head in %s says of its own acceptance cannot be read: %s", folder, error)
        return False
    return bool(shares) and sum(shares) / len(shares) < THRESHOLD


def is_folder(reference: str) -> bool:
    """Whether it names a folder. A registry's reference has no slash; a folder here is written ./name."""
    return "/" in reference or reference in (".", "..")


def _from_folder(folder: Path, base_cid: str) -> ServedHead:
    manifest = manifest_of(folder, base_cid)
    _log.warning("the head in %s was given directly: no publisher and no log vouch for it; for development", folder)
    return ServedHead(manifest.cid, folder)


def _from_registry(sources: HeadSources, reference: str, base_cid: str) -> ServedHead:
    """The head from the registry, or, if that is unreachable, from the cache; withdrawals are followed later too."""
    with (
        closing(RegistryClient.connect(sources.registry)) as registry,
        closing(LedgerClient.connect(sources.ledger)) as ledger,
    ):
        try:
            registry.connection.wait_ready(_COMING_SECONDS)
            evidence, published = find_head(registry, ledger, sources.trusted, reference, base_cid)
            folder = sources.cache / published.cid.removeprefix("cidv1:sha256:")
            fetch_head(registry, evidence, published, folder)
        except (Unavailable, DeadlineExceeded) as error:
            published, folder = _kept(sources, reference, base_cid, error)
    return ServedHead(published.cid, folder, published.publication.name, published.index)


def _kept(sources: HeadSources, reference: str, base_cid: str, error: KolmError) -> tuple[PublishedDraftHead, Path]:
    """The newest head in the cache that answers to the reference and passes every check that needs no network."""
    kept = [(head, folder) for head, folder in _verified(sources, base_cid) if answers(head, reference)]
    if not kept:
        raise error
    head, folder = max(kept, key=lambda pair: pair[0].index)
    _log.warning("the registry is away (%s); taking %s from %s", error.message, head.cid, folder)
    return head, folder


def _verified(sources: HeadSources, base_cid: str) -> Iterator[tuple[PublishedDraftHead, Path]]:
    folders: Iterable[Path] = sorted(sources.cache.iterdir()) if sources.cache.is_dir() else ()
    for folder in folders:
        try:
            head = verify_draft_head(DraftHeadEvidence.read(folder), sources.trusted, base_cid)
            check_files(head.manifest, folder)
        except LedgerError:
            continue
        yield head, folder


def _refusal(reference: str, error: Exception) -> list[RefusedHead]:
    other = error.reason if isinstance(error, KolmError) else "HEAD_INVALID"
    reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), other)
    if not reference and reason == "HEAD_NOT_FOUND":
        _log.info("the registry has no head for this base")
        return []
    _log.error("head %s is not loaded, %s: %s", reference or "of the base", reason, error)
    return [RefusedHead(reference, reason, str(error))]
