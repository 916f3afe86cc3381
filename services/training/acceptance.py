"""How long drafts would get: the walk of the engine over answers that are known, without running the engine.

A greedy answer is what the target would say again. So a draft token is accepted where it is the answer's next one, and
unrolling the head over the answer gives all drafts at once: exactly those that a chain of depth k would make.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from services.training.answers.answer import Answer, Recording
from services.training.head.batches import window_of
from services.training.head.loss import Teacher
from services.training.head.module import HeadModule
from services.training.head.unroll import unroll


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Chains of depth k over one domain's held-out greedy answers; prefills and what they emit are not counted."""

    tokens: int
    passes: int
    accepted: tuple[int, ...]  # [k] drafts whose token at that depth was accepted

    @property
    def mean_length(self) -> float:
        """Tokens that a pass emits, the target's own included."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def by_depth(self) -> tuple[float, ...]:
        """[k] the share of drafts accepted to each depth or beyond."""
        return tuple(count / max(1, self.passes) for count in self.accepted)


@torch.no_grad()
def measure(
    head: HeadModule, teacher: Teacher, held_out: Iterable[tuple[Answer, Recording]], k: int
) -> dict[str, Acceptance]:
    """By domain, of greedy answers only; in float32."""
    lengths: Mapping[str, list[int]] = defaultdict(list)
    tokens: dict[str, int] = defaultdict(int)
    for answer, recording in held_out:
        if answer.temperature == 0.0 and len(answer.said) > 1:
            lengths[answer.domain] += walk(_right(head, teacher, answer, recording, k), len(answer.said) - 1)
            tokens[answer.domain] += len(answer.said) - 1
    return {
        domain: Acceptance(tokens[domain], len(found), tuple(sum(n >= d for n in found) for d in range(1, k + 1)))
        for domain, found in sorted(lengths.items())
    }


def walk(right: Tensor, tokens: int) -> list[int]:
    """Accepted draft tokens of every pass until `tokens` are emitted, given [k, starts] which guesses are right."""
    prefix = right.int().cumprod(dim=0).sum(dim=0).tolist()
    accepted: list[int] = []
    start = 0
    while start < tokens:
        accepted.append(min(prefix[start], tokens - start - 1))
        start += accepted[-1] + 1
    return accepted


def _right(head: HeadModule, teacher: Teacher, answer: Answer, recording: Recording, k: int) -> Tensor:
    """[k, starts] whether the head's first choice at each step is what the target said."""
    device = head.fc.weight.device
    window = window_of([answer], [recording]).to(device, torch.float32)
    said = F.pad(teacher.draft_ids[window.said[0]], (0, k), value=-1)
    guesses = [head.logits(output)[0].argmax(-1) for output in unroll(head, window, k)]
    return torch.stack([
        guess == said[step : step + window.starts] for step, guess in enumerate(guesses, 1)
    ])  # fmt: skip
