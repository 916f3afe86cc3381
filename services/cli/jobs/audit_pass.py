"""One pass of an auditor over the ledger."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from services.auditor.audit_error import AuditError, BrokenLog, EngineFailed
from services.auditor.auditor import Auditor, Examined
from services.auditor.serving import AuditorPlan, connected
from services.cli.failures.exits import Failed, UsageError, VerificationFailed
from services.cli.terminal.progress import steps
from services.client import LedgerClient
from services.client.ledger.log import Halt, Verdict

_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Pass:
    """The results of a pass.

    `elsewhere` are the verdicts of another process that were waited for, which is `other`. `undecided` counts receipts
    that no draw has decided on yet. `remaining` are entries that were due and were given up. `before` counts the
    verdicts from before by outcome. `halts` are open.
    """

    examined: list[Examined]
    other: str
    elsewhere: tuple[Verdict, ...]
    undecided: int
    remaining: tuple[int, ...]
    before: Counter[str]
    halts: tuple[Halt, ...]

    @property
    def deviated(self) -> bool:
        """Whether a replay deviates, something has been tampered with, or a scope is still halted."""
        found = [each.finding for each in self.examined]
        outcomes = [*(each.outcome for each in found), *(verdict.outcome for verdict in self.elsewhere)]
        return bool(self.halts) or "DEVIATION" in outcomes or any(each.tampered for each in found)

    @property
    def passed(self) -> bool:
        """Whether everything that was due was replayed, exactly."""
        exact = all(each.finding.passed for each in self.examined) and all(
            verdict.outcome == "EXACT" for verdict in self.elsewhere
        )
        return exact and not self.remaining and not self.deviated


def run_pass(plan: AuditorPlan, *, quiet: bool = False) -> Pass:
    """Examine what is due and append the verdicts, saying on a terminal what is being done.

    Raises KolmError, LedgerError, CommandError.
    """
    from services.generation.target.without_torch import spare_torch

    with LedgerClient.connect(plan.ledger) as ledger:
        before = Counter(verdict.outcome for verdict in ledger.verdicts())
        examined: list[Examined] = []
        try:
            with steps("loading and probing the base", quiet=quiet) as step:
                spare_torch()
                with connected(plan, threading.Event()) as auditor:
                    other, waited = examine(auditor, examined.append, step)
                    undecided, remaining = auditor.undecided, auditor.remaining
        except BrokenLog as error:
            raise VerificationFailed(str(error), "`kolm ledger verify` says more") from error
        except EngineFailed as error:
            raise UsageError(str(error), "name the audited base with --model") from error
        except AuditError as error:
            raise Failed(str(error)) from error
        newest = {verdict.receipt_index: verdict for verdict in ledger.verdicts()} if waited else {}
        ours = {each.receipt_index for each in examined}
        elsewhere = tuple(newest[index] for index in waited if index in newest.keys() - ours)
        return Pass(examined, other, elsewhere, undecided, remaining, before, ledger.halt_state().halts)


def examine(
    auditor: Auditor,
    done: Callable[[Examined], None],
    step: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> tuple[str, tuple[int, ...]]:
    """Wait until the process that holds the auditor's folder has done what the log owes, or is gone; then examine what
    is left. Returns that process, and the receipts that were waited for.
    """
    step("reading the ledger")
    other, waited = auditor.in_other_hands()
    still = waited
    while still:
        step(f"waiting for {other}, which replays entry {still[0]}")
        pause(_POLL_SECONDS)
        still = auditor.in_other_hands()[1]
    for count, each in enumerate(auditor.run_pass(), start=1):
        done(each)
        step(f"replayed {count}, entry {each.receipt_index}; {len(auditor.remaining)} left")
    return other, waited
