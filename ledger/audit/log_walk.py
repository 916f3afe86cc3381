"""A walk over a log from its first entry: checks 2 to 4 of `log_verification.CHECKS`, and their state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ledger.audit.contradiction import Contradiction, EarlierVerdicts, contradictions
from ledger.audit.halt_breach import HaltWatch
from ledger.audit.log_clock import LogClock, Moment
from ledger.documents.audit import Draw
from ledger.documents.halt import HaltState
from ledger.documents.key_entry import KeyEntry
from ledger.documents.key_history import KeyHistory
from ledger.documents.receipt import OutputPart, PromptPart, Receipt, Sampling
from ledger.documents.reference_rules import References, follow
from ledger.documents.signed_document import Document, kind_of
from ledger.errors import ChainError, LedgerError, StoreError
from ledger.keys.envelope import Envelope
from ledger.tree.entry import CHAIN_START, Entry, chained
from ledger.tree.merkle import Frontier, leaf_hash

T = TypeVar("T")

NOT_KEPT = Envelope(b"", "", ())
"""The placeholder for an envelope that no rule reads."""

_SAMPLING, _PROMPT = Sampling(), PromptPart(1, "")


class CheckedEntry(Struct, frozen=True, gc=False):  # made twice for each entry; a dataclass takes three times as long
    """An entry and the results of the checks that need no other entry (most of the work); sent between processes.
    `malformed` is the reason why the bytes are not an entry; then only the leaf hash is present. `refused` is the
    reason why the document is invalid: its form, or its signatures. `envelope` is kept if its bytes affect other
    entries (draws, keys).
    """

    leaf: bytes
    index: int = -1
    signers: tuple[str, ...] = ()
    document: Document | None = None
    envelope: Envelope = NOT_KEPT
    malformed: str | None = None
    refused: str | None = None


def check_entry(data: bytes, keys: KeyHistory) -> CheckedEntry:
    """Read an entry and verify its signatures with the keys of its index. Never raises for its bytes."""
    leaf = leaf_hash(data)
    try:
        entry = Entry.from_bytes(data)
    except LedgerError as error:
        return CheckedEntry(leaf, malformed=str(error))
    signers = tuple([signature.key_id for signature in entry.envelope.signatures])
    try:
        document = keys.open(entry.index, entry.envelope)
    except LedgerError as error:
        return CheckedEntry(leaf, entry.index, signers, refused=str(error))
    kept = entry.envelope if isinstance(document, (Draw, KeyEntry)) else NOT_KEPT
    return CheckedEntry(leaf, entry.index, signers, document, kept)


def without_unread_members(entry: CheckedEntry) -> CheckedEntry:
    """Return a copy without the members that no rule reads; they are half of a receipt."""
    receipt = entry.document
    if not isinstance(receipt, Receipt):
        return entry
    output = OutputPart(receipt.output.tokens, "", "", "")
    left_out = {"tokenizer_cid": "", "profile_cid": "", "request_id": "", "adapter_cid": None, "nonce": None}
    kept = replace(receipt, sampling=_SAMPLING, prompt=_PROMPT, output=output, **left_out)
    return replace(entry, document=kept)


class CheckFailed(Exception):
    """The failure of check `number`, at entry `index` if one entry is at fault."""

    def __init__(self, number: int, detail: str, index: int | None = None) -> None:
        super().__init__(detail if index is None else str(ChainError(index, detail)))
        self.number = number
        self.index = index


class SeenEntries(References, EarlierVerdicts, Protocol):
    """The facts about earlier entries that later checks need. They grow with the log and are therefore kept on disk."""

    def knows(self, receipt_id: str) -> bool:
        """Whether a receipt has this id."""
        ...

    def remember(self, index: int, document: Document) -> None:
        """Record the next entry."""
        ...


@dataclass(slots=True)
class LogWalk:
    """The state of a walk after the entries so far. `chain` is their running hash (`entry.chained`)."""

    keys: KeyHistory
    seen: SeenEntries
    frontier: Frontier = field(default_factory=Frontier)
    chain: bytes = CHAIN_START
    halts: HaltState = field(default_factory=HaltState)
    kinds: Counter[str] = field(default_factory=Counter)
    watch: HaltWatch = field(default_factory=HaltWatch)
    signers: set[str] = field(default_factory=set)
    clock: LogClock = field(default_factory=LogClock)
    contradictions: list[Contradiction] = field(default_factory=list)

    def take(self, entry: CheckedEntry) -> tuple[Document, Moment]:
        """Check the next entry, which was read with the present `keys`. Returns its document, and its time by the log's
        clock. Raises CheckFailed and then leaves the state unchanged.
        """
        index, document = self.frontier.size, entry.document
        if entry.malformed is not None:
            raise CheckFailed(2, entry.malformed, index)
        if entry.index != index:
            raise CheckFailed(2, f"says that it is entry {entry.index}", index)
        if document is None:
            raise CheckFailed(3, str(entry.refused), index)
        if isinstance(document, KeyEntry) and document.replaces and document.public_key.key_id in self.signers:
            raise CheckFailed(3, f"{document.public_key.key_id} was in use before the entry that introduces it", index)
        if isinstance(document, Receipt) and self.seen.knows(document.receipt_id):
            raise CheckFailed(4, f"is a second receipt with the id {document.receipt_id}", index)
        halts = _attempt(4, index, lambda: follow(index, document, self.halts, self.seen))
        self.keys = _attempt(3, index, lambda: self.keys.after(index, document))
        self.halts = halts
        self.kinds[kind_of(document)] += 1
        moment = self.clock.read(index, document)
        self.watch.observe(index, document, moment)
        self.signers.update(entry.signers)
        self.seen.remember(index, document)
        self.contradictions += contradictions(self.seen, index, document, entry.signers)
        self.frontier, self.chain = self.frontier.append(entry.leaf), chained(self.chain, entry.leaf)
        return document, moment


def _attempt(number: int, index: int, step: Callable[[], T]) -> T:
    try:
        return step()
    except StoreError:  # the entry is not at fault
        raise
    except LedgerError as error:
        raise CheckFailed(number, str(error), index) from error
