"""The loss of the unrolled head, and its accuracy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.training.head.batches import Window
from services.training.head.module import HeadModule
from services.training.head.unroll import unroll


class Teacher(nn.Module):
    """From the target's last residual stream to its distribution, over the draft vocabulary."""

    norm: Tensor
    rows: Tensor
    target_ids: Tensor
    draft_ids: Tensor

    def __init__(self, norm: Tensor, head: Tensor, epsilon: float, target_ids: Tensor) -> None:
        """`norm` [hidden] and `head` [vocab_size, hidden] are the base's; `target_ids` [draft_vocab_size]."""
        super().__init__()
        self._epsilon = epsilon
        self.register_buffer("norm", norm)
        self.register_buffer("rows", head[target_ids])
        self.register_buffer("target_ids", target_ids)
        draft_ids = torch.full((len(head),), -1)
        draft_ids[target_ids] = torch.arange(len(target_ids))
        self.register_buffer("draft_ids", draft_ids)

    @torch.no_grad()
    def forward(self, finals: Tensor) -> Tensor:
        """Probabilities [..., draft_vocab_size]."""
        normed = F.rms_norm(finals.to(self.norm.dtype), self.norm.shape, self.norm, self._epsilon)
        return F.linear(normed, self.rows).to(self.norm.dtype).softmax(-1)


@dataclass(frozen=True, slots=True)
class StepSums:
    """Sums over starts, [steps] each: of cross-entropy in nats, and of guesses that were right.

    A start whose token is not in the draft vocabulary teaches nothing, and cannot be right. EAGLE-3 asks that of the
    target's greedy token; what it said spares the products over the rest of the vocabulary, most of a lesson's cost.
    """

    losses: Tensor
    right: Tensor


def step_sums(head: HeadModule, teacher: Teacher, window: Window, steps: int) -> StepSums:
    """Soft cross-entropy against the target's distribution at every step (arXiv 2503.01840 unrolls seven)."""
    probabilities = teacher(F.pad(window.finals, (0, 0, 0, steps)))
    said = teacher.draft_ids[F.pad(window.said, (0, steps))]
    sums: list[tuple[Tensor, ...]] = []
    for step, output in enumerate(unroll(head, window, steps), 1):
        places = slice(step, step + window.starts)
        counted = window.valid(step) & (said[:, places] >= 0)
        logits = head.logits(output[counted]).to(probabilities.dtype)
        loss = F.cross_entropy(logits, probabilities[:, places][counted], reduction="sum")
        right = logits.detach().argmax(-1) == said[:, places][counted]
        sums.append((loss, right.sum().float()))
    return StepSums(*(torch.stack(column) for column in zip(*sums, strict=True)))
