"""`python -m benchmarks.tensor_parallel [--model PATH]`: one model on 1, 2 and 4 ranks of this host, as JSON.

Of each: a digest of the tokens and stream digests of requests with speculation and without, milliseconds a token of one
sequence, and what each rank holds and sends. Memory and bytes are exact; times are those of ranks that share the CPUs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import torch

from services.generation.compiled.compiled_code import compile_sampling
from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.engine.core import EngineCore
from services.generation.engine.cost import PassCost
from services.generation.engine.events import Event, Finished, Outcome
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.settings import EngineSettings
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.ranks.shared_loading import SharedLoading
from services.generation.settings import GenerationSettings
from services.generation.target.folders.model_path import model_path
from services.generation.target.loading import load_target
from services.generation.target.parallel.leader import SharedTarget
from services.generation.target.parallel.loading import holding
from services.generation.target.target import Target

RANKS = (1, 2, 4)
CONTEXT, CACHE = 1024, 8192  # tokens
TOKENS = 48
COST = PassCost.line(fixed=1.0, row=0.05)


def outcomes(target: Target, tokenizer: Tokenizer, requests: list[EngineRequest]) -> list[Outcome]:
    """The ends of the requests, run beside each other."""
    found: dict[str, Outcome] = {}

    def sink(event: Event) -> None:
        if isinstance(event, Finished):
            found[event.request_id] = event.outcome

    drafters = {"lookahead": LookaheadDrafter(COST)}
    core = EngineCore(target, drafters, tokenizer.stream, COST, EngineSettings(), time.perf_counter)
    for request in requests:
        core.add(request, sink)
    while not core.idle:
        core.step()
    return [found[request.request_id] for request in requests]


def requests() -> list[EngineRequest]:
    return [
        EngineRequest(
            f"{method} at {temperature}", tuple(range(100, 140)) * (1 + n),
            SamplingParams(temperature=temperature, seed=7, max_tokens=TOKENS, ignore_eos=True), method=method,
        )
        for n, (method, temperature) in enumerate([("off", 0.0), ("lookahead", 0.0), ("lookahead", 0.8)])
    ]  # fmt: skip


def measured(target: Target, tokenizer: Tokenizer) -> dict[str, Any]:
    ended = outcomes(target, tokenizer, requests())
    digest = hashlib.sha256(repr([(each.token_ids, each.stream_digest) for each in ended]).encode()).hexdigest()
    before = target.sent_bytes if isinstance(target, SharedTarget) else 0
    start = time.perf_counter()
    outcomes(target, tokenizer, requests()[:1])
    seconds = time.perf_counter() - start
    after = target.sent_bytes if isinstance(target, SharedTarget) else 0
    return {"digest": digest, "ms_a_token": 1e3 * seconds / TOKENS, "kib_from_rank_0": (after - before) / 1024 / TOKENS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("smollm2"))
    model = model_path(parser.parse_args().model)
    torch.set_num_threads(1)
    compile_sampling()
    tokenizer, found = Tokenizer(model), []
    for ranks in RANKS:
        loading = SharedLoading(GenerationSettings.load([f"--model={model}", f"--tensor-parallel={ranks}"]), None)
        try:
            load = loading if ranks > 1 else load_target
            target = load(model, context_length=CONTEXT, cache_tokens=CACHE)
            held = target.ranks if isinstance(target, SharedTarget) else [holding(target)]  # type: ignore[arg-type]
            of_ranks = {"weights_mib": [each.weights / 2**20 for each in held]}
            of_ranks["memory_mib_beside_rank_0"] = [each.memory / 2**20 for each in held[1:]]
            found.append({"ranks": ranks} | measured(target, tokenizer) | of_ranks)
        finally:
            loading.close()
    print(json.dumps(found, indent=1))
    assert len({each["digest"] for each in found}) == 1, "the digests differ"


if __name__ == "__main__":
    main()
