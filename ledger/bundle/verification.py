"""Offline verification of a bundle: one numbered checklist over untrusted bytes. No network, no database.

docs/bundle.md explains the checks by their numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from ledger.audit.log_verification import Check
from ledger.audit.seen import SeenOnDisk
from ledger.bundle.checks import BundleChecks
from ledger.bundle.evidence import CheckFiles
from ledger.bundle.layout import BundleFiles
from ledger.bundle.report import NOT_REACHED, BundleReport, NothingToCheck, NotReached, Trust
from ledger.errors import LedgerError, StoreError

CHECKS = (
    "The bundle is well formed",
    "The checkpoint is signed by a log of the policy",
    "Enough witnesses have cosigned the checkpoint",
    "The log only ever grew",
    "Every entry is canonical and in the tree",
    "Nothing in the range was left out",
    "Every document is signed by a key that was valid there",
    "Every document is allowed at its position",
    "Nothing was served in a halted scope",
    "Every replay that is owed was made in time",
    "Content is what the receipts commit to",
    "Heads are what was published",
    "The conversation is the one of the receipts",
    "Enough replays were possible",
    "The log is as young as asked for",
    "The log holds the receipts that were promised",
    "No auditor contradicts itself",
)

_FOUNDATIONS = 2
"""The number of leading checks whose failure ends the checklist."""


def verify_bundle(bundle: BundleFiles, trust: Trust, check_files: CheckFiles = map) -> BundleReport:
    """Run the checklist `CHECKS`. Never raises for a wrong bundle. Raises StoreError if there is no disk space."""
    with closing(SeenOnDisk()) as seen:
        checks = BundleChecks(bundle, trust, check_files, seen)
        done: list[Check] = []
        for number, step in enumerate(checks.steps(), 1):
            blocked = any(check.passed is False for check in done[:_FOUNDATIONS])
            done.append(_attempt(number, step, blocked=blocked))
        return checks.report(tuple(done))


def _attempt(number: int, step: Callable[[], str], *, blocked: bool) -> Check:
    title = CHECKS[number - 1]
    try:
        if blocked:
            raise NotReached
        return Check(number, title, True, step())
    except NothingToCheck as reason:
        return Check(number, title, None, str(reason))
    except NotReached:
        return Check(number, title, None, NOT_REACHED)
    except StoreError:  # the bundle is not at fault
        raise
    except LedgerError as error:
        return Check(number, title, False, str(error))
