"""The error family of the auditor.

AuditError
├── BrokenLog      the entries do not follow from one another; the ledger is unreliable
├── FolderError    the auditor's own folder failed; the log is not concerned
├── EngineFailed   the base of the auditor's own engine does not load
├── CannotReplay   this receipt has no replay here; the finding is UNREPLAYABLE, or UNCHECKED for another engine
│   └── OutOfReach    this auditor lacks its base, adapter or engine; another auditor may have it
└── Interrupted    asked to stop in the middle of an examination; no verdict was written

EngineAway is an Unavailable of the client's family: the auditor waits for an engine as it does for a ledger.
"""

from __future__ import annotations

from services.client.errors import Unavailable


class AuditError(Exception):
    """Root of the auditor's errors; the message is for the operator."""


class BrokenLog(AuditError):
    """The log contradicts itself or its own checkpoint."""


class FolderError(AuditError):
    """The auditor's own folder cannot be read or written. No obligation is lost with it: the log has them all."""


class EngineFailed(AuditError):
    """The base of the auditor's own engine does not load."""


class CannotReplay(AuditError):
    """This receipt cannot be computed again here: another base, profile or adapter, or a request that cannot run."""


class OutOfReach(CannotReplay):
    """The receipt names a base, profile, adapter or engine that this auditor does not have."""


class EngineAway(Unavailable):
    """Another engine does not answer, or the auditor's is too busy; the receipt is examined in a later pass."""


class Interrupted(AuditError):
    """A stop was requested; the receipt is examined again at the next start."""
