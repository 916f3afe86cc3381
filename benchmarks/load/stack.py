"""A ledger and a generation server as processes on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import Service, resident, serving
from services.cli.up.local_services import OWNER, LocalServices, token_file
from services.cli.up.supervisor import Plan


@dataclass(frozen=True, slots=True)
class Stack:
    """Where both listen, and what a caller shows them: the owner's token acts for every tenant."""

    generation: str
    ledger: str
    token: str
    _processes: dict[str, int]

    def resident_mb(self) -> dict[str, float]:
        """Resident memory of each process (Linux)."""
        return {name: round(resident(process) / 2**20, 1) for name, process in self._processes.items()}


@contextmanager
def running(folder: Path, model: str, *flags: str) -> Iterator[Stack]:
    """Both, answering; stopped at the end. `flags` are the generation server's."""
    services = LocalServices(
        folder / "data", Path(model), generation_port=0, ledger_port=0, generation_flags=flags,
        shared_flags=("--log-level", "error"),
    )  # fmt: skip
    services.trust_own_keys()
    with ExitStack() as stack:

        def start(plan: Plan) -> Service:
            command = (plan.module, *plan.flags)
            return stack.enter_context(serving(plan.name, command, plan.ready_file, plan.environment))

        ledger = start(services.ledger())
        generation = start(services.generation(ledger.address))
        token = token_file(services.data_dir, OWNER).read_text().strip()
        processes = {"ledger": ledger.process, "generation": generation.process}
        yield Stack(generation.address, ledger.address, token, processes)
