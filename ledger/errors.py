"""The error family of the ledger.

    LedgerError
    ├── FormatError       bytes or values are not of the format; names the field
    │   ├── ClockAhead             a document has a date after the ledger's time
    │   └── BundleTooLarge         a bundle with more bytes or files than its format allows
    ├── SignatureError    a signature is missing, wrong, or by a key that may not sign this
    │   ├── SignaturesMissing      fewer operators have signed than have to
    │   └── LogOfAnotherKey        a database whose checkpoint another key of the log has signed
    ├── KeyFileError      a key file cannot be read, is malformed, or others can read it
    ├── SignerUnavailable a key in a device cannot be reached now
    ├── ChainError        an entry does not follow from its predecessor; names the index
    ├── ProofError        a Merkle proof or a checkpoint does not hold
    ├── DraftHeadRefused       a draft head may not be loaded
    │   ├── DraftHeadUnsigned      no publication of it by a trusted publisher
    │   ├── DraftHeadUnlogged      no proof that the log holds the publication
    │   ├── DraftHeadWithdrawn     a publisher has ended it
    │   ├── DraftHeadOfAnotherBase made for another base
    │   └── DraftHeadDamaged       bytes that differ from the manifest
    ├── Conflict          the ledger holds something else under this name
    ├── NotFound          no such entry, receipt or tile
    ├── Backpressure      the queue is full; names the time of a retry
    ├── RolledBack        the database is older than a head that was signed: an old backup was restored
    ├── GuardMissing      the guard of a log with entries is gone, so its age is unknown
    ├── WitnessRefusal    a witness does not cosign this checkpoint
    │   ├── UnknownLog            the witness does not watch this log
    │   ├── UnsignedCheckpoint    no key of the log has signed it
    │   ├── StaleRequest          the request starts from another tree than the witness knows
    │   ├── Forked                the log has signed two trees of one size
    │   └── Inconsistent          the checkpoint does not extend the cosigned tree
    ├── Stopped           the sequencer is not running any more
    └── StoreError        the database failed; nothing of the batch may be assumed written or unwritten
        ├── NotWritten    the answer to each caller of such a batch
        ├── StoreDamaged  its file or schema is damaged
        ├── ContentDamaged the content of one receipt is damaged
        ├── OtherRevision its tables have a revision that this version of kolm does not open
        ├── StoreReplaced a file of it was deleted, replaced or cut off while it was open
        └── StoreLocked   another process writes to this ledger

Untrusted bytes raise only members of this family: no ValueError, KeyError or RecursionError ever leaves a parser.
"""

from __future__ import annotations

from collections.abc import Sequence


class LedgerError(Exception):
    """The root of all errors that `ledger` raises on purpose."""


class FormatError(LedgerError):
    """Bytes or values do not have their format. `field` is the path of the wrong field, with dots between names."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class ClockAhead(FormatError):
    """A document has a date after the ledger's time, by more than clocks may differ.

    The same bytes are accepted once the ledger's clock reaches the date, which is `seconds` ahead.
    """

    def __init__(self, field: str, time: str, now: str, seconds: float) -> None:
        super().__init__(
            field,
            f"is {time}, {seconds:.0f} s ahead of the ledger's clock ({now}). Set the clock of the machine that signed "
            "it, or the ledger's if that one is wrong",
        )
        self.seconds = seconds


class BundleTooLarge(FormatError):
    """A bundle, or a file in it, has more bytes or files than the format allows, so that no verifier reads it."""


class SignatureError(LedgerError):
    """A signature is missing, does not verify, or is by a key that is not trusted for this role."""


class SignaturesMissing(SignatureError):
    """Fewer operators have signed than have to."""


class LogOfAnotherKey(SignatureError):
    """The newest checkpoint of a database is signed by other keys than the ledger's. `signers` and `expected` are the
    first two parts of verifier keys: `kolm.local/ledger+1a2b3c4d`.
    """

    def __init__(self, signers: Sequence[str], expected: Sequence[str]) -> None:
        super().__init__(
            f"its newest checkpoint is signed by {', '.join(signers) or 'no key'}, and this ledger's key is "
            f"{' or '.join(expected)}"
        )
        self.signers = tuple(signers)
        self.expected = tuple(expected)


class KeyFileError(LedgerError):
    """A key file cannot be read, is malformed, or is readable by others than its owner."""


class SignerUnavailable(LedgerError):
    """The device that holds a key does not sign now. Nothing was signed; a later attempt may succeed."""


class ChainError(LedgerError):
    """The chain, the tree or the rules of the log do not allow the entry at `index`."""

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(f"entry {index}: {problem}")
        self.index = index
        self.problem = problem


class ProofError(LedgerError):
    """An inclusion proof, a consistency proof or a checkpoint does not hold."""


class DraftHeadRefused(LedgerError):
    """A draft head may not be loaded."""


class DraftHeadUnsigned(DraftHeadRefused):
    """No publisher that this verifier trusts has published it."""


class DraftHeadUnlogged(DraftHeadRefused):
    """No proof shows that the log holds its publication."""


class DraftHeadWithdrawn(DraftHeadRefused):
    """A publisher has withdrawn it, for good."""


class DraftHeadOfAnotherBase(DraftHeadRefused):
    """It was made for another base."""


class DraftHeadDamaged(DraftHeadRefused):
    """A file or the manifest differs from the published bytes."""


class Conflict(LedgerError):
    """The ledger already holds other bytes under this name. Sending it again cannot succeed."""


class NotFound(LedgerError):
    """The ledger holds no such entry, receipt or tile."""


class Backpressure(LedgerError):
    """The sequencer's queue is full. Nothing was written; try again after `retry_after` seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"the ledger's queue is full, try again in {retry_after:g} s")
        self.retry_after = retry_after


class RolledBack(LedgerError):
    """The database holds `size` entries, fewer than the `seen` entries of a signed head: it is an old copy."""

    def __init__(self, problem: str, size: int, seen: int) -> None:
        super().__init__(problem)
        self.size = size
        self.seen = seen


class GuardMissing(LedgerError):
    """A log of `size` entries has no guard: a restored old backup would go unnoticed."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"the log holds {size} entries, and the guard knows nothing of it: it was lost, or is another one. Bring "
            "the guard back. If it is lost for good, compare the log with the newest checkpoint that others have "
            "(`kolm ledger verify --database`, also with `--depth deep`), and start the ledger once with --new-guard"
        )
        self.size = size


class WitnessRefusal(LedgerError):
    """A witness does not cosign this checkpoint."""


class UnknownLog(WitnessRefusal):
    """The witness does not watch this log."""


class UnsignedCheckpoint(WitnessRefusal):
    """No key of the log has signed this checkpoint."""


class StaleRequest(WitnessRefusal):
    """The request starts from another tree than the witness knows, which has `size` entries: ask again from it."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the witness has cosigned {size} entries")
        self.size = size


class Forked(WitnessRefusal):
    """The log has signed two trees of `size` entries."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the log has signed two trees of {size} entries")
        self.size = size


class Inconsistent(WitnessRefusal):
    """The proof does not show that the checkpoint extends the cosigned tree."""


class Stopped(LedgerError):
    """The sequencer has stopped (asked to, or because its store failed) and takes no more entries."""


class StoreError(LedgerError):
    """The database failed. Whether the batch was written is unknown until the ledger is opened again."""


class NotWritten(StoreError):
    """The StoreError of each caller with an entry in the batch; the sequencer has logged the reason once."""


class StoreDamaged(StoreError):
    """The database's own file or schema is damaged: its answers are unreliable."""


class ContentDamaged(StoreError):
    """The sealed content of a receipt does not open with its key. Its entry and every proof are not affected."""


class OtherRevision(StoreError):
    """The tables of a database are of a revision (`found`) that this version of kolm does not open.

    `remedy` is a sentence for the operator. `needs` is the oldest version of kolm that knows the tables, if they are
    newer than this one and name it.
    """

    def __init__(self, database: str, found: int, remedy: str, needs: str | None = None) -> None:
        super().__init__(f"{database} has tables of revision {found}: {remedy}")
        self.database = database
        self.found = found
        self.needs = needs


class StoreReplaced(StoreError):
    """The file at `path` was deleted, moved, replaced or cut off after it was opened. Later writes would be lost with
    the process.
    """

    def __init__(self, path: str, copies: Sequence[str]) -> None:
        where = f"; its contents can still be copied from {', '.join(copies)}, before this process ends" * bool(copies)
        super().__init__(f"{path} was deleted, replaced or cut off while the ledger was running{where}")
        self.path = path


class StoreLocked(StoreError):
    """Another process has this ledger open for writing."""
