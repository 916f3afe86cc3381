"""Speculation at a published acceptance: `python -m benchmarks --only accepted --accept 0.87,0.69,0.53 --shape NAME`.

Weights of published heads are not available here. Their speedup is therefore measured with the acceptance that a head's
page states, and the real cost of drafts and passes: a head of the named kind and shape with random weights drafts, and
its tokens are replaced by those of an earlier answer of `off`, or by wrong ones, at the stated rates. The confidence in
a token is the stated acceptance at its depth, right or wrong; the confidence of a real head is more precise.
"""

from __future__ import annotations

import random
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.engines import KolmEngine, Run
from benchmarks.families import random_file
from services.generation.drafting.block.block_drafter import BlockDrafter
from services.generation.drafting.draft_tree.candidates import NO_CONFIDENCE
from services.generation.drafting.draft_tree.draft_tree import DraftModelState
from services.generation.drafting.eagle3.drafter import Eagle3Drafter
from services.generation.drafting.head_drafter import HeadDraft, HeadDrafter
from services.generation.drafting.mtp.mtp_drafter import MtpDrafter
from services.generation.engine.drafter import Drafter, DraftRequest
from services.generation.engine.request import EngineRequest
from services.generation.engine.tree import TokenTree
from services.generation.target.arrays import Float32
from services.generation.target.config.config import TargetConfig
from tests.fakes.heads import random_block, random_head, random_mtp

HEADS = ("mtp", "eagle3", "block")
_DRAFT_TOKENS = 32_768
_PROMPT = 32  # random tokens
_LEAST = 1e-3  # lower bound of an acceptance that becomes a logit
_BLOCK, _BLOCK_LAYERS = 16, 5  # of DFlash's heads, which read as many layers of the base


def measure(
    accept: Sequence[float], head: str, shape: str, file: Path | None, *, max_tokens: int, prompts: int, rounds: int
) -> dict[str, Any]:
    """Measure tokens a second of `off` and of the head, in turns. `accept[d]`: the share of drafts whose first d + 1
    tokens are right. The model is a GGUF file, or random 4-bit weights in a public model's `shape`.
    """
    with tempfile.TemporaryDirectory() as folder:
        engine = KolmEngine(file or random_file(shape, "q4_0", Path(folder)))
    engine.ignore_eos = True  # answers to random prompts may end at once
    rng = random.Random(0)
    asked = [[rng.randrange(300, engine.target.config.vocab_size) for _ in range(_PROMPT)] for _ in range(prompts)]
    off = engine.contender("off")
    truth = {number: off.run([prompt], 0.0, max_tokens).tokens[0] for number, prompt in enumerate(asked)}
    rated = RatedDrafter(_drafter(head, engine), accept)
    engine.drafters[head] = rated
    drafting = engine.contender(head, k=len(accept))
    turns: list[tuple[Run, Run]] = []
    for _ in range(rounds):
        for number, prompt in enumerate(asked):
            rated.truth = truth[number]
            turns.append((off.run([prompt], 0.0, max_tokens), drafting.run([prompt], 0.0, max_tokens)))
    if any(plain.tokens != drafted.tokens for plain, drafted in turns):
        raise AssertionError("a draft changed a token")
    return _figures(head, shape if file is None else file.name, accept, turns, rated)


def _figures(
    head: str, model: str, accept: Sequence[float], turns: Sequence[tuple[Run, Run]], rated: RatedDrafter
) -> dict[str, Any]:
    plain, drafted = ([each[side] for each in turns] for side in (0, 1))
    drafts = sum(run.drafts for run in drafted)
    accepted = map(sum, zip_longest(*(run.accepted for run in drafted), fillvalue=0))
    costs, pass_seconds = rated.drafter.cost, median(run.decode_seconds / len(run.tokens[0]) for run in plain)
    step, pace = (costs.once, costs.pace.once) if head == "block" else (costs.step, costs.pace.step)
    return {
        "model": model,
        "head": head,
        "accept": [round(share, 3) for share in accept],
        "tokens a second, off": round(median(run.tokens_per_second for run in plain), 1),
        "tokens a second, drafted": round(median(run.tokens_per_second for run in drafted), 1),
        "speedup": round(median(d.tokens_per_second / p.tokens_per_second for p, d in turns), 3),
        "tokens a pass": round(sum(run.mean_acceptance_length for run in drafted) / len(drafted), 3),
        "accepted by depth": [round(count / max(drafts, 1), 3) for count in accepted],
        "a draft step in passes": round((step.fixed + step.row) * pace / pass_seconds, 3),
    }


def _drafter(head: str, engine: KolmEngine) -> HeadDrafter:
    base = engine.target.config
    if head == "mtp":
        return MtpDrafter(random_mtp(base, draft_tokens=min(_DRAFT_TOKENS, base.vocab_size)), engine.target)
    layer = {name: getattr(base, name) for name in ("intermediate_size", "heads", "kv_heads", "head_dim")}
    if head == "eagle3":
        return Eagle3Drafter(random_head(base, **layer, draft_vocab_size=min(32_000, base.vocab_size)), engine.target)
    return BlockDrafter(random_block(base, **layer, **_dflash(base)), engine.target)


def _dflash(base: TargetConfig) -> dict[str, Any]:
    """The configuration of published DFlash heads, except the sizes of their layers, which are the base's."""
    reads = [round(at * base.layers / (_BLOCK_LAYERS - 1)) for at in range(_BLOCK_LAYERS)]
    return {
        "layers": _BLOCK_LAYERS, "feature_layers": tuple(reads), "block_size": _BLOCK, "from_first": False,
        "draft_vocab_size": base.vocab_size, "own_output": False, "markov_rank": 0, "confidence": False,
        "confidence_reads_token": False,
    }  # fmt: skip


class RatedDrafter(Drafter):
    """A head's drafter whose drafts are right as often as `accept` states. `truth` are the tokens of the answer."""

    def __init__(self, drafter: HeadDrafter, accept: Sequence[float]) -> None:
        self.drafter, self.accept = drafter, accept
        self.truth: Sequence[int] = ()
        self.feature_layers = drafter.feature_layers
        self._rng = random.Random(1)
        self._flat = np.empty((0, 0), np.float32)

    def begin(self, request: EngineRequest) -> HeadDraft:
        draft = self.drafter.begin(request)
        draft.state = _RatedState(*(getattr(draft.state, each.name) for each in fields(DraftModelState)))
        draft.state.rated, draft.state.right = self, 0
        return draft

    def propose(self, asks: Sequence[DraftRequest]) -> list[TokenTree]:
        return self.drafter.propose(asks)

    def flat(self, rows: int, tokens: int) -> Float32:
        """Equal logits [rows, tokens], cached: making them, or copying the head's, takes a tenth of a step."""
        if len(self._flat) < rows:
            self._flat = np.zeros((rows, tokens), np.float32)
        return self._flat[:rows]

    def right_tokens(self) -> int:
        """Draw how many tokens of a draft are right; beyond the stated depths the last rate applies."""
        drawn = self._rng.random()
        count = sum(drawn < share for share in self.accept)
        while count >= len(self.accept) and self._rng.random() < self.rate(count):
            count += 1
        return count

    def rate(self, depth: int) -> float:
        """The probability that the token at a depth is right if the tokens before it are."""
        shares = (1.0, *self.accept)
        depth = min(depth, len(self.accept) - 1)
        return shares[depth + 1] / shares[depth]


class _RatedState(DraftModelState):
    """A head's draft whose first choice is replaced by the answer's token, or by a wrong one."""

    rated: RatedDrafter
    right: int

    def expand(self, logits: Float32, confidence: Float32 = NO_CONFIDENCE) -> None:
        assert self.tree is not None
        depth, truth, known = self.tree.steps, self.rated.truth, self.vocabulary
        if depth == 0:
            self.right = self.rated.right_tokens()
        at = self.length + depth - len(self.request.prompt)
        token = truth[at] if at < len(truth) else 0
        if depth >= self.right:
            token = (token + 1) % len(known.draft_ids)
        ids, place = known.target_ids, int(known.draft_ids[token])
        place = place if place >= 0 else token % len(ids)  # a token outside of the head's vocabulary
        chance = min(max(self.rated.rate(depth), _LEAST), 1.0 - _LEAST)
        rows = self.rated.flat(*logits.shape)
        rows[:, place], instead = np.log(chance / (1.0 - chance) * (len(ids) - 1)), int(ids[place])
        ids[place] = token
        super().expand(rows, confidence)
        rows[:, place], ids[place] = 0.0, instead


def parse_shares(text: str) -> tuple[float, ...]:
    """Parse shares of drafts: "0.87,0.69,0.53", or "2.08@2" for 2.08 tokens a pass with 2 draft tokens of the same
    conditional acceptance. Raises ArgumentTypeError unless shares fall from at most 1 to above 0.
    """
    length, _, drafts = text.partition("@")
    try:
        shares = _equal_rates(float(length), int(drafts)) if drafts else tuple(map(float, text.split(",")))
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r}: expected numbers, such as 0.87,0.69 or 2.08@2") from error
    if not all(1.0 >= before >= after > 0.0 for before, after in zip((1.0, *shares), shares, strict=False)):
        raise ArgumentTypeError(f"{text!r}: expected shares that fall from at most 1 to above 0")
    return shares


def _equal_rates(length: float, drafts: int) -> tuple[float, ...]:
    """Shares of the same conditional acceptance whose sum is `length` - 1."""
    if not 1.0 < length <= drafts + 1:
        raise ArgumentTypeError(f"{length} tokens a pass with {drafts} draft tokens: expected above 1 to {drafts + 1}")
    low, high = 0.0, 1.0
    for _ in range(50):
        rate = (low + high) / 2
        low, high = (rate, high) if sum(rate**depth for depth in range(drafts + 1)) < length else (low, rate)
    return tuple(rate**depth for depth in range(1, drafts + 1))
