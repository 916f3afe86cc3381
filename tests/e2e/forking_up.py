"""`kolm up …` whose services are forks of it, and whose stderr is a file: `python -m tests.e2e.forking_up FILE …`."""

import multiprocessing
import os
import sys

from services.cli.main import app
from services.cli.up import up
from services.cli.up.supervisor import Plan, Supervisor
from tests import preloaded  # noqa: F401 (by this process once, and not by each fork)
from tests.forked import Forked


class _Forking(Supervisor):
    def _process(self, plan: Plan) -> Forked:  # type: ignore[override]
        environment = {**os.environ, **plan.environment}
        fork = multiprocessing.get_context("fork")
        return Forked(
            "services.cli.up.bound_service", str(os.getpid()), plan.module, *plan.flags,
            environment=environment, together=True, context=fork,
        )  # fmt: skip


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as log:
        os.dup2(log.fileno(), 2)
    up.Supervisor = _Forking  # type: ignore[misc]
    app(["up", *sys.argv[2:]], prog_name="kolm")
