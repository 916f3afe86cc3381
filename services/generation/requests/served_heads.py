"""The heads of this server: loaded at start, selected by requests, withdrawn by entries of the ledger."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from ledger.audit.draft_head_evidence import DraftHeadEvidence, PublishedDraftHead, check_files, verify_draft_head
from ledger.documents.draft_head import NEEDS_RETRAINING, DraftHeadWithdrawal, KScore
from ledger.documents.signed_document import open_document, read_document
from ledger.errors import (
    DraftHeadDamaged,
    DraftHeadOfAnotherBase,
    DraftHeadUnlogged,
    DraftHeadUnsigned,
    DraftHeadWithdrawn,
    LedgerError,
)
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.entry import Entry
from services.client.errors import DataLoss, DeadlineExceeded, KolmError, Unavailable
from services.client.errors import NotFound as NotInRegistry
from services.client.head_folder import HeadFolderInvalid, alone_in, answers, fetch_head, find_head, manifest_of
from services.client.ledger.ledger import LedgerClient
from services.client.registry import RegistryClient
from services.generation.drafting.heads import DraftHead, HeadError, HeadForAnotherBase
from services.generation.drafting.methods import load_head
from services.generation.drafting.mtp.assistant import read_assistant_beside
from services.generation.drafting.mtp.block_weights import MtpBlock, read_block
from services.generation.ledger_link import LedgerUnreachable
from services.generation.target.arrays import Int64
from services.generation.target.config.config import TargetConfig
from services.generation.target.errors import TargetError
from services.runtime.errors import FailedPrecondition, NotFound
from services.runtime.process import Outage

_log = logging.getLogger(__name__)
ReadEntries = Callable[[int], AsyncIterator[Entry]]
"""Withdrawals and k-scores of the log from an index on."""
_COMING_SECONDS = 2.0
"""The wait for a registry that was started together with this server."""
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (DraftHeadUnsigned, "HEAD_UNSIGNED"),
    (DraftHeadUnlogged, "HEAD_UNLOGGED"),
    (DraftHeadWithdrawn, "HEAD_WITHDRAWN"),
    (DraftHeadOfAnotherBase, "HEAD_BASE_MISMATCH"),
    (HeadForAnotherBase, "HEAD_BASE_MISMATCH"),
    (DraftHeadDamaged, "HEAD_DAMAGED"),
    (DataLoss, "HEAD_DAMAGED"),
    (NotInRegistry, "HEAD_NOT_FOUND"),
    (Unavailable, "REGISTRY_UNAVAILABLE"),
    (DeadlineExceeded, "REGISTRY_UNAVAILABLE"),
)
OWN = "mtp"
"""The reference of the block that comes with the model."""


@dataclass(frozen=True, slots=True)
class ServedHead:
    """A loaded head. `kind`: the method that drafts with it. `name` and `publication_index` are None for a folder given
    by path.
    """

    cid: str
    folder: Path
    name: str | None = None
    publication_index: int | None = None
    kind: str = "eagle3"

    @property
    def drafter(self) -> str:
        """The name of its method in the engine."""
        return f"{self.kind}/{self.cid}"

    def answers(self, reference: str) -> bool:
        """Whether `cidv1:sha256:…`, `name` or `name@sha256:<prefix>` can mean this head."""
        name, _, digits = reference.partition("@sha256:")
        return reference == self.cid or (name == self.name and self.cid.startswith(f"cidv1:sha256:{digits}"))


@dataclass(frozen=True, slots=True)
class RefusedHead:
    """A head in the settings that was not loaded; `reason` is for the errors of requests that name it."""

    reference: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class HeadState:
    """Heads in the order of preference, and their state in the ledger.

    `withdrawn` maps identifiers to reasons. `unfit`: pairs of head and adapter (None: the bare base) whose newest
    k-score is below its threshold.
    """

    served: tuple[ServedHead, ...] = ()
    refused: tuple[RefusedHead, ...] = ()
    withdrawn: Mapping[str, str] = field(default_factory=dict)
    unfit: frozenset[tuple[str, str | None]] = frozenset()

    def eligible(self, adapter_cid: str | None, *, above_threshold: bool) -> tuple[list[ServedHead], str | None]:
        """The heads that may draft for this adapter, or the `fallback_reason` of receipts if there are none."""
        found, reason = [], "no_head"
        for head in self.served:
            if head.cid in self.withdrawn:
                reason = "head_withdrawn"
            elif above_threshold and (head.cid, adapter_cid) in self.unfit:
                reason = "head_needs_retraining"
            else:
                found.append(head)
        return found, None if found else reason

    def named(self, reference: str) -> ServedHead:
        """The head that a request names.

        Raises NotFound; FailedPrecondition with the reason if it is not served.
        """
        found = [head for head in self.served if head.answers(reference)]
        if not found:
            self._refuse(reference)
        if len(found) > 1:
            names = ", ".join(head.cid for head in found)
            message = f"{reference!r} names several heads: {names}; write more digits"
            raise FailedPrecondition(message, reason="AMBIGUOUS_REFERENCE", metadata={"candidates": names})
        head = found[0]
        if head.cid in self.withdrawn:
            message = f"{head.cid} was withdrawn: {self.withdrawn[head.cid]}"
            raise FailedPrecondition(message, reason="HEAD_WITHDRAWN", metadata={"head_cid": head.cid})
        return head

    def _refuse(self, reference: str) -> None:
        for refused in self.refused:
            if refused.reference == reference:
                raise FailedPrecondition(f"{reference} is not served: {refused.message}", reason=refused.reason)
        loaded = ", ".join(f"{head.name or head.folder} ({head.cid})" for head in self.served)
        hint = f"loaded are {loaded}" if loaded else "no head is loaded here"
        raise NotFound("eagle_head", reference, f"{hint}; leave spec_decode.eagle_head out for the base's own")


class HeadBoard:
    """The current state of the heads. Used on one event loop.

    `known` is False until the ledger has answered once, because a head may have been withdrawn. Without a published
    head it is True from the start.
    """

    def __init__(self, state: HeadState, read: ReadEntries, trusted: TrustedKeys, every: float) -> None:
        self.state = state
        self._read = read
        self._trusted = trusted
        self._every = every
        self._position = 0
        self.known = all(head.publication_index is None for head in state.served)

    async def refresh(self) -> None:
        """Read new entries from the ledger once, if a head is served. Raises LedgerUnreachable; the next call continues
        behind the last entry that was read.
        """
        if not self.state.served:
            return
        async for entry in self._read(self._position):
            self._take(entry)
            self._position = entry.index + 1
        self.known = True

    async def follow(self) -> None:
        """Poll every `every` seconds until cancelled. Returns immediately if no head is served."""
        outage = Outage(_log, "ask the ledger for withdrawn heads", LedgerUnreachable)
        while self.state.served:
            with outage:
                await self.refresh()
            await asyncio.sleep(self._every)

    def _take(self, entry: Entry) -> None:
        """Apply an entry. A withdrawal counts, whatever key signed it: the log has accepted it, and not using a head is
        always safe.
        """
        try:
            document = read_document(entry.envelope)
            if isinstance(document, DraftHeadWithdrawal):
                self._withdraw(document)
            elif isinstance(document, KScore):
                open_document(entry.envelope, self._trusted)
                self._score(document)
        except LedgerError as error:
            _log.warning("ignoring head entry %d: %s", entry.index, error)

    def _withdraw(self, withdrawal: DraftHeadWithdrawal) -> None:
        if any(head.cid == withdrawal.manifest_cid for head in self.state.served):
            _log.error("withdrawing the head %s: %s", withdrawal.manifest_cid, withdrawal.reason)
        withdrawn = {**self.state.withdrawn, withdrawal.manifest_cid: withdrawal.reason}
        self.state = replace(self.state, withdrawn=withdrawn)

    def _score(self, score: KScore) -> None:
        pair = (score.manifest_cid, score.adapter_cid)
        rest = self.state.unfit - {pair}
        unfit = rest | {pair} if score.status == NEEDS_RETRAINING else rest
        self.state = replace(self.state, unfit=unfit)


@dataclass(frozen=True, slots=True)
class HeadSources:
    """The source of heads. `references` are in the order of preference; an empty reference is the base's newest head.

    `cache`: folder of fetched heads, by identifier. Without `trusted` keys no published head can be loaded.
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
    head: DraftHead


@dataclass(frozen=True, slots=True)
class LoadedHeads:
    """The outcome for all references."""

    loaded: tuple[LoadedHead, ...] = ()
    refused: tuple[RefusedHead, ...] = ()


def load_heads(sources: HeadSources, base_cid: str, config: TargetConfig) -> LoadedHeads:
    """Load every head that may be loaded, once each; returns the others with their reasons."""
    loaded: dict[str, LoadedHead] = {}
    refused: list[RefusedHead] = []
    for reference in sources.references:
        try:
            served = (
                _from_folder(Path(reference), base_cid)
                if is_folder(reference)
                else _from_registry(sources, reference, base_cid)
            )
            loaded.setdefault(served.cid, _read(served, config))
        except (HeadError, HeadFolderInvalid, KolmError, LedgerError, OSError) as error:
            refused += _refusal(reference, error)
    for head in loaded.values():
        _log.info("drafting with head %s: %s", head.served.name or head.served.folder, head.served.cid)
    return LoadedHeads(tuple(loaded.values()), tuple(refused))


def load_beside(folder: Path, base_cid: str, config: TargetConfig) -> LoadedHeads:
    """The head in the folder next to the model; none, with a log line, if it is not for this base."""
    try:
        read = _read(ServedHead(manifest_of(folder, base_cid).cid, folder), config)
    except (HeadError, HeadFolderInvalid, OSError) as error:
        _log.info("skipping the head in %s next to the model: %s", folder, error)
        return LoadedHeads()
    _log.info("drafting with the head in %s next to the model; it is not published", folder)
    return LoadedHeads((read,))


def load_own(model: Path, config: TargetConfig, draft_tokens: Int64 | None) -> LoadedHeads:
    """The MTP block inside the model's files, or the block or assistant in their sidecar, if there is one
    (`read_block`, `read_assistant_beside`). One that cannot be read is refused, and the server serves on without it.
    """
    try:
        found = read_assistant_beside(model, config) or read_block(model, config, draft_tokens)
    except (HeadError, TargetError, OSError) as error:
        return LoadedHeads(refused=tuple(_refusal(OWN, error)))
    if found is None:
        return LoadedHeads()
    what = f"the MTP block, over {len(found.target_ids)} tokens," if isinstance(found, MtpBlock) else "the assistant"
    _log.info("drafting with %s that comes with %s: %s", what, model, found.cid)
    return LoadedHeads((LoadedHead(ServedHead(found.cid, model, kind=found.kind), found),))


def _read(served: ServedHead, config: TargetConfig) -> LoadedHead:
    """Load the head of a folder, of any kind. Raises HeadError."""
    head = load_head(served.folder, config)
    return LoadedHead(replace(served, kind=head.kind), head)


def is_folder(reference: str) -> bool:
    """Whether the reference is a folder: it has a slash (./name), which no registry reference has."""
    return "/" in reference or reference in (".", "..")


def _from_folder(folder: Path, base_cid: str) -> ServedHead:
    manifest = manifest_of(folder, base_cid)
    _log.warning("drafting with the head in %s, which is not published; for development", folder)
    return ServedHead(manifest.cid, folder)


def _from_registry(sources: HeadSources, reference: str, base_cid: str) -> ServedHead:
    """Fetch the head from the registry or, if that is unreachable, from the cache; withdrawals are still followed."""
    with (
        closing(RegistryClient.connect(sources.registry)) as registry,
        closing(LedgerClient.connect(sources.ledger)) as ledger,
    ):
        try:
            registry.connection.wait_ready(_COMING_SECONDS)
            evidence, published = find_head(registry, ledger, sources.trusted, reference, base_cid)
            folder = sources.cache / published.cid.removeprefix("cidv1:sha256:")
            with alone_in(folder):
                fetch_head(registry, evidence, published, folder)
        except (Unavailable, DeadlineExceeded) as error:
            published, folder = _kept(sources, reference, base_cid, error)
    return ServedHead(published.cid, folder, published.publication.name, published.index)


def _kept(sources: HeadSources, reference: str, base_cid: str, error: KolmError) -> tuple[PublishedDraftHead, Path]:
    """The newest cached head that matches the reference and passes every offline check."""
    kept = [(head, folder) for head, folder in _verified(sources, base_cid) if answers(head, reference)]
    if not kept:
        raise error
    head, folder = max(kept, key=lambda pair: pair[0].index)
    _log.warning("using a cached head: the registry is unreachable (%s): %s from %s", error.message, head.cid, folder)
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
    _log.error("skipping head %s, %s: %s", reference or "of the base", reason, error)
    return [RefusedHead(reference, reason, str(error))]
