"""Training-time test (EAGLE-3, arXiv 2503.01840, section 3.2): the head unrolled on its own outputs.

Here are the batches of answers as padded tensors, the loss and accuracy of a step, and the unrolled pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from services.training.answering import Recording
from services.training.head import HeadModule
from services.training.prompts import Answer

_POOL = 1024  # answers that are sorted by length before they are cut into passes, so that little of a pass is padding

_ROWS_COMPARED = 512  # in one product: their logits in float32 should stay in a cache


@dataclass(frozen=True, eq=False)
class Passes:
    """An endless row of passes; the n-th one depends on the answers and the seed alone."""

    answers: Sequence[Answer]
    starts: int  # in a pass at most, padding counted; a longer answer is a pass of its own
    seed: int
    _lengths: list[int] = field(default_factory=list)  # passes of each epoch so far

    def of_step(self, step: int, count: int) -> list[list[int]]:
        """The `count` passes of an optimiser step, each a list of answer numbers."""
        return [self._pass(step * count + number) for number in range(count)]

    def _pass(self, number: int) -> list[int]:
        epoch = 0
        while number >= self._length(epoch):
            number, epoch = number - self._length(epoch), epoch + 1
        return _shuffled_passes(self, epoch)[number]

    def _length(self, epoch: int) -> int:
        if epoch == len(self._lengths):
            self._lengths.append(len(_shuffled_passes(self, epoch)))
        return self._lengths[epoch]


@lru_cache(maxsize=2)
def _shuffled_passes(passes: Passes, epoch: int) -> list[list[int]]:
    """Every answer once, in new company."""
    rng = Random(f"{passes.seed}/{epoch}")
    order = list(range(len(passes.answers)))
    rng.shuffle(order)
    made: list[list[int]] = []
    for first in range(0, len(order), _POOL):
        made += _cut(passes, order[first : first + _POOL])
    rng.shuffle(made)
    return made


def _cut(passes: Passes, pool: list[int]) -> list[list[int]]:
    """A pool by length, cut so that no pass has more than its starts."""
    answers = passes.answers
    cut: list[list[int]] = []
    for number in sorted(pool, key=lambda i: (len(answers[i].output), len(answers[i].tokens), i)):
        if not cut or (len(cut[-1]) + 1) * (len(answers[number].output) - 1) > passes.starts:
            cut.append([])
        cut[-1].append(number)
    return cut


@dataclass(frozen=True, slots=True)
class Window:
    """A batch of `b` answers with at most `n` entries and `a` starts, padded after the end of an answer.

    Start j of an answer is the entry of the token before its j-th token: the first is the prompt's last entry, where a
    draft begins after the prefill. The head unrolled from start j predicts, at step s = 1, 2, …, the answer's token
    j + s, from the embedding of the token before it.
    """

    following: Tensor  # [b, n] int64: the token after each entry's
    features: Tensor  # [b, n, layers * hidden] bfloat16, or what `to` made of it
    output: Tensor  # [b, a + 1] int64: the tokens of the answers
    finals: Tensor  # [b, a + 1, hidden] bfloat16: the stream from which the target chose output[j]
    first_start: Tensor  # [b] int64: entry of start 0
    output_lengths: Tensor  # [b] int64

    @property
    def starts(self) -> int:
        return self.output.shape[1] - 1

    def to(self, device: torch.device, dtype: torch.dtype) -> Window:
        """The window with features in `dtype`, which the first matrix product reads as they are."""
        return Window(
            self.following.to(device), self.features.to(device, dtype), self.output.to(device), self.finals.to(device),
            self.first_start.to(device), self.output_lengths.to(device),
        )  # fmt: skip


def window_of(answers: Sequence[Answer], recordings: Sequence[Recording]) -> Window:
    """Pad and stack."""
    following = [np.array(answer.tokens[1:], np.int64) for answer in answers]
    outputs = [np.array(answer.output, np.int64) for answer in answers]
    return Window(
        following=torch.from_numpy(_padded(following)),
        features=torch.from_numpy(_padded([r.features for r in recordings])).view(torch.bfloat16),
        output=torch.from_numpy(_padded(outputs)),
        finals=torch.from_numpy(_padded([r.finals for r in recordings])).view(torch.bfloat16),
        first_start=torch.tensor([len(answer.prompt) - 1 for answer in answers]),
        output_lengths=torch.tensor([len(answer.output) for answer in answers]),
    )


def _padded(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    longest = max(len(array) for array in arrays)
    stacked = np.zeros((len(arrays), longest, *arrays[0].shape[1:]), arrays[0].dtype)
    for line, array in zip(stacked, arrays, strict=True):
        line[: len(array)] = array
    return stacked


class Teacher(nn.Module):
    """The way from the target's last residual stream to its distribution, over the draft vocabulary."""

    norm: Tensor
    rows: Tensor
    target_ids: Tensor
    draft_ids: Tensor

    def __init__(self, norm: Tensor, head: Tensor, epsilon: float, target_ids: Tensor, cap: float = 0.0) -> None:
        """`norm` [hidden], `head` [vocab_size, hidden] and the `cap` of logits, 0 for none, are the base's;
        `target_ids` [draft_vocab_size].
        """
        super().__init__()
        self._epsilon, self.cap = epsilon, cap
        self.register_buffer("norm", norm)
        self.register_buffer("rows", head[target_ids])
        self.register_buffer("target_ids", target_ids)
        draft_ids = torch.full((len(head),), -1)
        draft_ids[target_ids] = torch.arange(len(target_ids))
        self.register_buffer("draft_ids", draft_ids)

    @torch.no_grad()
    def normed(self, finals: Tensor) -> Tensor:
        """The normed stream [..., hidden], the input of the output matrix."""
        return F.rms_norm(finals.to(self.norm.dtype), self.norm.shape, self.norm, self._epsilon)

    @torch.no_grad()
    def forward(self, finals: Tensor) -> Tensor:
        """Probabilities [..., draft_vocab_size]."""
        return _shares(F.linear(self.normed(finals), self.rows).to(self.norm.dtype), self.cap)


def _shares(logits: Tensor, cap: float) -> Tensor:
    """Probabilities by the target's logits, which tanh keeps below `cap` if it is not 0."""
    return (cap * torch.tanh(logits / cap) if cap else logits).softmax(-1)


@dataclass(frozen=True, slots=True)
class Places:
    """Tokens of a window's answers in the draft vocabulary, each predicted from up to `steps` starts before it.

    Other tokens have no loss, and cannot be drafted. EAGLE-3 applies this to the target's greedy token; with the output
    token, the products over the rest of the vocabulary, most of a lesson's cost, are not needed.
    """

    lines: Tensor  # [places] int64
    positions: Tensor  # [places] int64: of a token in its answer
    drafts: Tensor  # [places] int64: its draft id
    finals: Tensor  # [places, hidden] normed: the source of the target's distribution there

    @classmethod
    def of(cls, window: Window, teacher: Teacher) -> Places:
        drafts = teacher.draft_ids[window.output]
        counted = (drafts >= 0) & (torch.arange(drafts.shape[1], device=drafts.device) < window.output_lengths[:, None])
        counted[:, 0] = False  # no draft begins before the prompt's end
        lines, positions = counted.nonzero(as_tuple=True)
        return cls(lines, positions, drafts[lines, positions], teacher.normed(window.finals[lines, positions]))

    def from_starts(self, values: Tensor, step: int) -> Tensor:
        """Values [b, a, ...] of the starts that predict these places at `step`; arbitrary ones without such a start."""
        return values[self.lines, (self.positions - step).clamp(min=0)]

    def counted(self, steps: int) -> Tensor:
        """[steps, places] whether there is such a start."""
        return self.positions >= torch.arange(1, steps + 1, device=self.positions.device)[:, None]


@dataclass(frozen=True, slots=True)
class StepSums:
    """`losses` (cross-entropy in nats) and `right` guesses: sums over the starts of each step, [steps], without
    gradients. `loss` is the losses' weighted sum, with them.
    """

    loss: Tensor
    losses: Tensor
    right: Tensor


@dataclass(frozen=True, slots=True)
class Compared:
    """Drafts compared with the target: the weighted sum of losses, with gradients; and by step and place
    [steps, places], without gradients, losses, right guesses, and the overlap of both distributions.
    """

    loss: Tensor
    losses: Tensor
    right: Tensor
    overlaps: Tensor


def compared(
    states: Tensor, matrix: Tensor, weights: Tensor, teacher: Teacher, places: Places, *, overlap: bool
) -> Compared:
    """Logits are states [steps, places, n] times matrix [draft_vocab_size, n]; `weights` [steps] are the losses'."""
    counted = places.counted(len(weights)).to(weights.dtype)
    kind = states.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype
    loss, *found = _Comparison.apply(  # type: ignore[no-untyped-call]
        states.to(dtype), matrix.to(dtype), weights[:, None] * counted, places.finals.to(dtype),
        teacher.rows.to(dtype), teacher.cap, places.drafts, overlap,
    )  # fmt: skip
    return Compared(loss, *(each * counted for each in found))


class _Comparison(torch.autograd.Function):
    """Soft cross-entropy against the target's distribution, computed together with its gradient.

    Logits are computed for some rows at a time: all of them in float32, with autograd's copies, would take most of a
    lesson's memory and time.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, matrix: Tensor, weights: Tensor, finals: Tensor, rows: Tensor, cap: float,
        drafts: Tensor, overlap: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """`weights` [steps, places] of losses are 0 without a draft; finals [places, hidden] times rows
        [draft_vocab_size, hidden] are the target's logits before its `cap`, drafts [places] its tokens. The overlap of
        the distributions is computed with `overlap`.
        """
        steps, count, width = states.shape
        exact = weights.dtype  # float32, or float64 in tests
        slopes = states.new_empty(steps, count, len(matrix))
        losses, right, overlaps = (weights.new_zeros(steps, count) for _ in range(3))
        size = max(1, _ROWS_COMPARED // steps)
        with torch.autocast(states.device.type, enabled=False):
            for first in range(0, count, size):
                part = slice(first, first + size)
                wanted = _shares(F.linear(finals[part], rows).to(exact), cap)
                logits = F.linear(states[:, part].reshape(-1, width), matrix).to(exact).view(steps, -1, len(matrix))
                best, shares = logits.amax(-1), logits.softmax(-1)
                sums = best - shares.amax(-1).log()  # the logarithms of the sums of exponentials
                losses[:, part] = sums - torch.einsum("spv,pv->sp", logits, wanted)
                wanted_ids = drafts[part].expand(steps, -1)[..., None]
                right[:, part] = (logits.gather(-1, wanted_ids)[..., 0] == best).to(exact)
                if overlap:
                    overlaps[:, part] = torch.minimum(shares, wanted).sum(-1)
                slopes[:, part] = shares.sub_(wanted)
        ctx.save_for_backward(slopes, states, matrix, weights)
        ctx.mark_non_differentiable(losses, right, overlaps)
        return (losses * weights).sum(), losses, right, overlaps

    @staticmethod
    def backward(ctx: Any, slope: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        slopes, states, matrix, weights = ctx.saved_tensors
        factors = (weights * slope).to(states.dtype).flatten()[:, None]
        flat = slopes.flatten(0, 1)
        to_states, to_matrix = factors * (flat @ matrix), flat.T @ (factors * states.flatten(0, 1))
        return to_states.view_as(states), to_matrix, None, None, None, None, None, None


def step_sums(head: HeadModule, teacher: Teacher, window: Window, weights: Tensor) -> StepSums:
    """Soft cross-entropy against the target's distribution at every step (arXiv 2503.01840 unrolls seven); `weights`
    [steps] of their losses.
    """
    places = Places.of(window, teacher)
    outputs = unroll(head, window, len(weights))
    states = torch.stack([places.from_starts(output, step) for step, output in enumerate(outputs, 1)])
    found = compared(head.norm(states), head.lm_head.weight, weights, teacher, places, overlap=False)
    return StepSums(found.loss, found.losses.sum(-1), found.right.sum(-1))


def unroll(head: HeadModule, window: Window, steps: int) -> Iterator[Tensor]:
    """The layer's output at every start, [b, a, hidden], at steps 1, 2, … `steps`; `head.logits` reads the tokens off.

    At step 1 a start reads the target's fused feature; at later ones the layer's own output of the step before. It
    attends to the entries up to its own, which all have target features, as after the acceptance of their tokens; and
    to its own earlier steps.
    """
    positions = torch.arange(window.following.shape[1], device=window.following.device)
    fused = head.fc(window.features).to(head.embeddings.dtype)
    x = head.midlayer.attention_input(head.embed(window.following), fused)
    starts = window.first_start[:, None] + torch.arange(window.starts, device=positions.device)
    starts = starts.clamp(max=len(positions) - 1)
    attention = _Attention(head, x, positions, starts)
    feature, x = _taken(fused, starts), _taken(x, starts)
    for step in range(1, steps + 1):
        if step > 1:
            embedded = head.embed(_shifted(window.output, step - 1, window.starts))
            x = head.midlayer.attention_input(embedded, feature)
        feature = head.midlayer.output(feature, attention.attend(x, step))
        yield feature


@dataclass(slots=True)
class _Attention:
    """Keys and values of the entries, and of the steps so far at each start."""

    head: HeadModule
    entries: Tensor  # [b, n, 2 * hidden] the attention's input at every entry
    positions: Tensor  # [n]
    starts: Tensor  # [b, a] entry of each start
    _keys: Tensor = field(init=False)  # [b, kv, head_dim, n]
    _values: Tensor = field(init=False)  # [b, kv, n, head_dim]
    _hidden: Tensor = field(init=False)  # [b, 1, 1, a, n] float: -inf for entries after a start
    _step_keys: list[Tensor] = field(default_factory=list)  # each [b, kv, 1, a, head_dim]
    _step_values: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        projections = self.head.midlayer.self_attn
        keys = self.head.rotated(projections.keys(self.entries), self.positions[None])
        self._keys = keys.permute(0, 2, 3, 1)
        self._values = projections.values(self.entries).transpose(1, 2)
        behind = self.positions > self.starts[..., None]
        self._hidden = torch.zeros(behind.shape, device=behind.device).masked_fill(behind, -math.inf)[:, None, None]

    def attend(self, x: Tensor, step: int) -> Tensor:
        """Mixed values [b, a, heads * head_dim] for the starts' inputs x [b, a, 2 * hidden]."""
        projections, positions = self.head.midlayer.self_attn, self.starts + (step - 1)
        queries = _grouped(self.head.rotated(projections.queries(x), positions), self._keys.shape[1])
        if step > 1:
            self._step_keys.append(_grouped(self.head.rotated(projections.keys(x), positions), self._keys.shape[1]))
            self._step_values.append(_grouped(projections.values(x), self._keys.shape[1]))
        weights = self._weights(queries)
        entries = self._keys.shape[-1]
        mixed = _times(weights[..., :entries], self._values)
        for number, values in enumerate(self._step_values):
            mixed = mixed + weights[..., entries + number, None] * values
        return mixed.permute(0, 3, 1, 2, 4).flatten(2)

    def _weights(self, queries: Tensor) -> Tensor:
        """[b, kv, group, a, n + steps before this one]"""
        scores = [_times(queries, self._keys) + self._hidden]
        scores += [(queries * keys).sum(-1, keepdim=True) for keys in self._step_keys]
        scale = self.head.config.head_dim**-0.5
        weights: Tensor = (torch.cat(scores, dim=-1) * scale).softmax(dim=-1).to(self._values.dtype)
        return weights


def _times(rows: Tensor, matrix: Tensor) -> Tensor:
    """rows [b, kv, group, a, i] times matrix [b, kv, i, o]"""
    product = rows.flatten(2, 3) @ matrix
    return product.view(*rows.shape[:4], product.shape[-1])


def _grouped(heads: Tensor, kv_heads: int) -> Tensor:
    """[b, a, heads, d] to [b, kv_heads, group, a, d]"""
    batch, starts, _, size = heads.shape
    return heads.view(batch, starts, kv_heads, -1, size).permute(0, 2, 3, 1, 4)


def _taken(entries: Tensor, starts: Tensor) -> Tensor:
    """Entries [b, n, size] at starts [b, a]."""
    return entries.gather(1, starts[..., None].expand(-1, -1, entries.shape[-1]))


def _shifted(tokens: Tensor, by: int, count: int) -> Tensor:
    """tokens[:, by : by + count], padded with zeros."""
    return F.pad(tokens, (0, max(0, by + count - tokens.shape[1])))[:, by : by + count]
