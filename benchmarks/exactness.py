"""A public model's tokens and digests, batched and speculating, are compared with those of one row at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track

from benchmarks.real import PROMPTS
from services.generation.drafting.draft_model import DraftModelDrafter
from services.generation.drafting.eagle3.config import HeadConfig, head_shapes
from services.generation.drafting.eagle3.drafter import Eagle3Drafter
from services.generation.drafting.eagle3.head import Head
from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.drafting.rest import RestDrafter
from services.generation.engine.core import EngineCore
from services.generation.engine.cost import PassCost, StepCost
from services.generation.engine.drafter import Ask, Draft, Drafter
from services.generation.engine.events import Event, Finished
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.settings import EngineSettings
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.engine.tree import TokenTree
from services.generation.target.blocks import BLOCK
from services.generation.target.config.config import TargetConfig
from services.generation.target.folders.model_path import model_path
from services.generation.target.loading import load_target
from services.generation.target.probing.profile import measure_profile
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target

TEMPERATURES = (0.0, 0.7, 1.0)
THREADS = (1, 2, 3, 4)
_TOKENS = 32
_COST = PassCost.line(1.0, 0.01)  # rows cost next to nothing: every method drafts as widely as it can

Answer = tuple[tuple[int, ...], str]


@dataclass(frozen=True, slots=True)
class Way:
    """How requests are run: all of these must change nothing."""

    method: str
    threads: int = 2
    together: bool = True  # all requests at once, or one after another
    settings: EngineSettings = field(default_factory=EngineSettings)
    blocks: int | None = None  # of the cache; few of them force preemptions


def measure() -> dict[str, Any]:
    """Counts of what was compared and of what was equal; the probe of the model."""
    path = model_path("smollm2")
    tokenizer = Tokenizer(path)
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    targets = {threads: load_target(path, threads=threads, cache_tokens=8192) for threads in THREADS}
    small = load_target(path, cache_tokens=4 * BLOCK)
    profile = measure_profile(targets[2])
    drafters = _drafters(targets[2], path)
    one_row = Way("off", threads=1, together=False, settings=EngineSettings(max_rows=1, prefix_caching=False))
    alone = _run(one_row, targets[1], {}, tokenizer, prompts)
    counts = {}
    for way in track(_ways(), "exactness"):
        target = small if way.blocks else targets[way.threads]
        found = _run(way, target, drafters, tokenizer, prompts)
        counts[_named(way)] = f"{sum(found[key] == alone[key] for key in alone)} of {len(alone)}"
    return {
        "probe": {"passed": profile.passed, "compared": profile.report.compared},
        "widths 1 to 256": _widths(targets[2]),
        "answers equal to one row at a time": counts,
    }


def _ways() -> list[Way]:
    chunks = [EngineSettings(max_rows=rows, prefill_rows=rows, prefix_caching=False) for rows in (5, 33, 256)]
    methods = ("lookahead", "rest", "eagle3", "draft", "guesses")
    return [
        *(Way("off", threads=threads) for threads in THREADS),
        *(Way("off", together=False, settings=settings) for settings in chunks),
        Way("off", blocks=4),
        *(Way(method, together=together) for method in methods for together in (False, True)),
        *(Way(method, threads=threads) for method in ("lookahead", "guesses") for threads in (1, 4)),
        *(Way(method, settings=settings) for method in ("eagle3", "guesses") for settings in chunks[:2]),
    ]


def _named(way: Way) -> str:
    rows = "" if way.settings.max_rows == EngineSettings().max_rows else f", {way.settings.max_rows} rows a pass"
    full = ", a cache that is too small" if way.blocks else ""
    return f"{way.method}, {'together' if way.together else 'alone'}, {way.threads} threads{rows}{full}"


def _run(
    way: Way, target: Target, drafters: dict[str, Drafter], tokenizer: Tokenizer, prompts: Sequence[list[int]]
) -> dict[tuple[int, float], Answer]:
    """Tokens and digest of each prompt at each temperature."""
    answers: dict[tuple[int, float], Answer] = {}
    names = {str(n): (p, t) for n, (p, t) in enumerate((p, t) for p in range(len(prompts)) for t in TEMPERATURES)}

    def sink(event: Event) -> None:
        if isinstance(event, Finished):
            answers[names[event.request_id]] = event.outcome.token_ids, event.outcome.stream_digest

    core = EngineCore(target, drafters, tokenizer.stream, _COST, way.settings, time.perf_counter)
    for name, (prompt, temperature) in names.items():
        sampling = SamplingParams(temperature=temperature, seed=11, max_tokens=_TOKENS, ignore_eos=True)
        core.add(EngineRequest(name, tuple(prompts[prompt]), sampling, method=way.method), sink)
        while not way.together and not core.idle:
            core.step()
    while not core.idle:
        core.step()
    return answers


def _drafters(target: Target, path: Path) -> dict[str, Drafter]:
    """All methods; the head has random weights, and the model drafts for itself."""
    drafting = load_target(path, cache_tokens=8192)
    return {
        "lookahead": LookaheadDrafter(_COST),
        "rest": RestDrafter({}),
        "eagle3": Eagle3Drafter(_random_head(target.config), target, _COST, copies=True),
        "draft": DraftModelDrafter(drafting, target.config.vocab_size, StepCost(1.0, 0.01)),
        "guesses": _Guesses(target.config.vocab_size),
    }


def _random_head(base: TargetConfig) -> Head:
    config = HeadConfig(
        layers=1, hidden_size=base.hidden_size, target_hidden_size=base.hidden_size,
        intermediate_size=base.intermediate_size, heads=base.heads, kv_heads=base.kv_heads, head_dim=base.head_dim,
        norm_epsilon=1e-5, vocab_size=base.vocab_size, draft_vocab_size=8192,
        feature_layers=(2, base.layers // 2, base.layers - 3), rope={"rope_type": "default", "rope_theta": 10000.0},
        trained_length=2048, attention_bias=False, output_bias=False, mlp_bias=False, head_norms=False,
        own_embeddings=False, norm_before_residual=False, norm_before_fc=False, fc_norm=False, norm_output=False,
    )  # fmt: skip
    dice = torch.Generator().manual_seed(0)
    tensors = {
        name: (0.05 * torch.randn(shape, generator=dice) + (1.0 if len(shape) == 1 else 0.0)).bfloat16().float()
        for name, shape in head_shapes(config).items()
    }
    ids = torch.randperm(config.vocab_size, generator=dice)[: config.draft_vocab_size].sort().values.numpy()
    return Head("kolm", config, {name: tensor.numpy() for name, tensor in tensors.items()}, ids)


class _Guesses(Drafter):
    """Random trees of any width: nearly all of it wrong, which must change nothing."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size, self._dice = vocab_size, random.Random(0)

    def begin(self, request: EngineRequest) -> Draft:
        return Draft()

    def propose(self, asks: Sequence[Ask]) -> list[TokenTree]:
        return [self._guess(ask.tokens, ask.budget.nodes) for ask in asks]

    def _guess(self, tokens: list[int], most: int) -> TokenTree:
        count = self._dice.randint(0, most)
        seen = tokens[-200:]
        drawn = [
            self._dice.choice((self._dice.choice(seen), self._dice.randrange(self._vocab_size))) for _ in range(count)
        ]
        parents = [self._dice.randrange(n) for n in range(1, count + 1)]
        return TokenTree((tokens[-1], *drawn), (-1, *parents))


def _widths(target: Target) -> str:
    """Random trees of every width: three nodes of each beside the same paths, row by row."""
    dice, equal, compared = random.Random(0), 0, 0
    history = [dice.randrange(target.config.vocab_size) for _ in range(150)]
    tables: list[list[int]] = [[], []]
    for table in tables:
        target.blocks.extend(table, len(history) + 257)
        rows = RowsBuilder()
        rows.add_chunk(table, 0, history, False)
        target.forward(rows.build())
    for width in track(range(1, 257), "widths"):
        parents = [-1, *(dice.randrange(max(0, n - 4), n) for n in range(1, width))]
        tokens = [dice.randrange(target.config.vocab_size) for _ in range(width)]
        rows = RowsBuilder()
        rows.add_tree(tables[0], len(history), tokens, parents)
        together = target.forward(rows.build()).logits
        for node in {0, width - 1, dice.randrange(width)}:
            compared += 1
            equal += bool((_alone(target, tables[1], len(history), tokens, parents, node) == together[node]).all())
    for table in tables:
        target.blocks.release(table)
    return f"{equal} of {compared}"


def _alone(
    target: Target, table: list[int], length: int, tokens: list[int], parents: list[int], node: int
) -> NDArray[np.float32]:
    """The node's row when its path is the sequence, one row a pass."""
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    for depth, step in enumerate(path):
        rows = RowsBuilder()
        rows.add_tree(table, length + depth, [tokens[step]], [-1])
        logits: NDArray[np.float32] = target.forward(rows.build()).logits[0]
    return logits
