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

_LOOK_SECONDS = 0.5
"""Between two looks at what another auditor has in hand."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The results of a pass.

    `elsewhere` are the verdicts of other auditors that were waited for, by auditor. `undecided` counts receipts that no
    draw has decided on yet. `remaining` are entries that were due and are given up, for now or for good. `before`
    counts the verdicts from before by outcome. `halts` are open.
    """

    examined: list[Examined]
    elsewhere: tuple[tuple[str, Verdict], ...]
    undecided: int
    remaining: tuple[int, ...]
    before: Counter[str]
    halts: tuple[Halt, ...]

    @property
    def deviated(self) -> bool:
        """Whether a replay deviates, something has been tampered with, or a scope is still halted."""
        found = [each.finding for each in self.examined]
        outcomes = [*(each.outcome for each in found), *(verdict.outcome for _, verdict in self.elsewhere)]
        return bool(self.halts) or "DEVIATION" in outcomes or any(each.tampered for each in found)

    @property
    def passed(self) -> bool:
        """Whether everything that was due was replayed, exactly."""
        exact = all(each.finding.passed for each in self.examined) and all(
            verdict.outcome == "EXACT" for _, verdict in self.elsewhere
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
                    waited = examine(auditor, examined.append, step)
                    undecided, theirs = auditor.undecided, auditor.in_other_hands()
                    remaining = tuple(index for index in auditor.remaining if index not in theirs)
        except BrokenLog as error:
            raise VerificationFailed(str(error), "`kolm ledger verify` says more") from error
        except EngineFailed as error:
            raise UsageError(str(error), "name the audited base with --model") from error
        except AuditError as error:
            raise Failed(str(error)) from error
        ours = {each.receipt_index for each in examined}
        newest = {verdict.receipt_index: verdict for verdict in ledger.verdicts()} if waited else {}
        elsewhere = tuple((label, newest[index]) for index, label in waited.items() if index in newest.keys() - ours)
        return Pass(examined, elsewhere, undecided, remaining, before, ledger.halt_state().halts)


def examine(
    auditor: Auditor,
    done: Callable[[Examined], None],
    step: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> dict[int, str]:
    """Examine what is due, and wait until what another auditor has in hand by then is done by it, or comes to us
    because that one is gone. Returns what was waited for: receipts by index, with the auditor that had them.
    """
    step("reading the ledger, replaying what is due")
    count, waited = 0, None
    while True:
        for each in auditor.run_pass():
            count += 1
            done(each)
            step(f"replayed {count}, entry {each.receipt_index}; {len(auditor.remaining)} left")
        theirs = auditor.in_other_hands()
        waited = theirs if waited is None else waited
        still = sorted(waited.keys() & theirs.keys())
        if not still:
            return waited
        step(f"waiting for {theirs[still[0]] or 'another auditor'}, which replays entry {still[0]}")
        pause(_LOOK_SECONDS)
