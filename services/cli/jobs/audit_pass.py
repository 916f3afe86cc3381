"""One pass of an auditor over the ledger."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from services.auditor.assembly import AuditorPlan, connected
from services.auditor.audit_error import AuditError, BrokenLog, EngineFailed, ServiceAway
from services.auditor.auditor import Auditor, Examined
from services.cli.failures.exits import Away, Failed, UsageError, VerificationFailed
from services.cli.terminal.output import talk
from services.client import LedgerClient
from services.client.ledger.log import Halt


@dataclass(frozen=True, slots=True)
class Pass:
    """The results of a pass.

    `undecided` counts receipts that no draw has decided on yet. `remaining` are entries that were due and are given up
    or in another auditor's hands. `before` counts the verdicts from before by outcome. `halts` are open.
    """

    examined: list[Examined]
    undecided: int
    remaining: tuple[int, ...]
    before: Counter[str]
    halts: tuple[Halt, ...]

    @property
    def deviated(self) -> bool:
        """Whether a replay deviates, something has been tampered with, or a scope is still halted."""
        found = [each.finding for each in self.examined]
        return bool(self.halts) or any(each.outcome == "DEVIATION" or each.tampered for each in found)

    @property
    def passed(self) -> bool:
        """Whether everything that was due was replayed, exactly."""
        return all(each.finding.passed for each in self.examined) and not self.remaining and not self.deviated


def run_pass(plan: AuditorPlan) -> Pass:
    """Examine what is due and append the verdicts. Raises KolmError, LedgerError, CommandError."""
    with LedgerClient.connect(plan.ledger) as ledger:
        before = Counter(verdict.outcome for verdict in ledger.verdicts())
        examined: list[Examined] = []
        try:
            with connected(plan, threading.Event()) as auditor:
                _examine(auditor, examined.append)
                undecided, remaining = auditor.undecided, auditor.remaining
        except BrokenLog as error:
            raise VerificationFailed(str(error), "`kolm ledger verify` says more") from error
        except EngineFailed as error:
            raise UsageError(str(error), "name the audited base with --model") from error
        except ServiceAway as error:
            hint = f"{len(examined)} receipts were replayed before; run it again for the rest"
            raise Away(str(error), hint) from error
        except AuditError as error:
            raise Failed(str(error)) from error
        return Pass(examined, undecided, remaining, before, ledger.halt_state().halts)


def _examine(auditor: Auditor, done: Callable[[Examined], None]) -> None:
    with talk().status("reading the ledger") as status:
        for count, each in enumerate(auditor.run_pass(), 1):
            done(each)
            status.update(f"replayed {count}, entry {each.receipt_index}")
