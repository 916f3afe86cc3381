"""Compilation by numba and LLVM before the first request: at a machine's first start, in processes of their own while
the model loads, which need neither torch nor the model.

    python -m services.generation.warm_up text sampling        (is such a process)
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from services.generation.engine.numba_cache import (
    PARTS,
    Part,
    can_be_kept,
    compile_log,
    compiling,
    is_compiled,
    leave_mark,
)
from services.runtime.process import configure_logging
from services.runtime.settings import LogFormat


def compile_everything() -> None:
    """Compile everything for this machine, for any model: minutes at first, no time if all is cached.

    Raises:
        TargetError: this CPU lacks fused multiply-add.
    """
    from services.generation.target.kernels.attention.cache_dtypes import FORMS
    from services.generation.target.kernels.compilation import compile_ahead, module_names
    from services.generation.target.kernels.storages import STORAGES

    wanted = (
        module_names(list(STORAGES), cached, arithmetic) for cached in FORMS for arithmetic in ("float32", "int8")
    )
    compile_ahead(list(dict.fromkeys(module for modules in wanted for module in modules)))
    for part in PARTS:
        with compiling(part):
            warm_up(part)
        leave_mark(part)


def warm_up(part: Part) -> None:
    """Run code that numba compiles once for all models; `trees` is for heads and draft models."""
    of_parts = warm_up_greedy, _warm_up_sampling, _warm_up_copies, _warm_up_trees
    dict(zip(PARTS, of_parts, strict=True))[part]()


def _warm_up_copies() -> None:
    from services.generation.drafting.lookahead import LookaheadDrafter
    from services.generation.engine.cost import PassCost
    from services.generation.engine.drafter import Budget

    cost = PassCost(rows=(1, 2), seconds=(1.0, 1.5))
    Budget.of(1, cost.of_drafts(1, drafting=1, sequences=1, prefill_rows=0, keys=0))
    LookaheadDrafter()


def warm_up_greedy() -> None:
    """Compile before the first requests, which would wait for it on the engine's thread."""
    import numpy as np

    from services.generation.engine.sampling.race import Row

    Row.of(np.zeros(2, np.float32))


def _warm_up_sampling() -> None:
    import numpy as np

    from services.generation.engine.request import SamplingParams
    from services.generation.engine.sampling.race import Row
    from services.generation.engine.sampling.sampler import Sampler, logprobs_of

    logits = np.zeros(2, np.float32)
    plain = SamplingParams(temperature=1.0)
    for params in (plain, replace(plain, top_p=0.5), replace(plain, top_k=1, top_p=0.5, min_p=0.1)):
        Sampler(params, 0, (), frozenset()).sample(logits, 0)
    logprobs_of(Row.of(logits), 0, 1)


def _warm_up_trees() -> None:
    """Grow one level below one root, for a vocabulary of two tokens."""
    import numpy as np

    from services.generation.drafting.acceptance import Acceptance
    from services.generation.drafting.draft_tree.candidates import DraftShape, Vocabulary
    from services.generation.drafting.draft_tree.draft_tree import DraftModelState, DraftTree
    from services.generation.engine.economics import Costs
    from services.generation.engine.request import EngineRequest, SamplingParams

    ids, request = np.arange(2), EngineRequest("", (0,), SamplingParams())
    vocabulary, acceptance = Vocabulary(ids, ids), Acceptance().begin(request)
    state = DraftModelState.of(request, acceptance, (), vocabulary)
    tree = DraftTree(0, acceptance, DraftShape(depth=2, width=2, tree_tokens=8), Costs(np.ones(4)))
    state.begin(tree, (0, 0))
    tree.worth_expanding()
    state.expand(np.zeros((1, 2), np.float32))
    tree.token_tree()
    state.observe(0, [0])


def compile_beside(part: Part, log_format: str) -> subprocess.Popen[bytes] | None:
    """Start a process that compiles, unless an earlier start of this version has marked the part as compiled.

    It logs to this process's stderr and ends with it. A caller that needs the code waits in `compiling`, and
    compiles missing functions.
    """
    if is_compiled(part) or not can_be_kept():
        return None
    command = [sys.executable, "-m", __name__, log_format, part]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE)
    threading.Thread(target=process.wait, daemon=True).start()  # otherwise it stays a zombie
    return process


def after_compiling(part: Part, log_format: str) -> Callable[[Callable[[], None]], None] | None:
    """Start a process that compiles, as `compile_beside` does. Returns a function that calls its argument on a thread
    when the process has ended; None if there is no such process.
    """
    process = compile_beside(part, log_format)
    if process is None:
        return None
    os.setpriority(os.PRIO_PROCESS, process.pid, 10)  # requests are answered meanwhile

    def then(call: Callable[[], None]) -> None:
        def wait() -> None:
            process.wait()
            call()

        threading.Thread(target=wait, name=f"after compiling {part}", daemon=True).start()

    return then


def main(log_format: LogFormat, part: Part) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with compiling(part):
        if is_compiled(part):
            return
        configure_logging("info", log_format, "generation")
        gc.disable()  # saves a tenth of the time: compiled code is kept, so there is hardly any garbage
        with compile_log(part):
            warm_up(part)
        leave_mark(part)


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    main("json" if sys.argv[1] == "json" else "text", next(part for part in PARTS if part == sys.argv[2]))
