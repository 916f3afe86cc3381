"""Which of the target's tokens a head can draft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor

from services.generation.drafting.eagle3.training.answers import Answer


def frequent_tokens(answers: Iterable[Answer], size: int, vocab_size: int) -> Tensor:
    """The `size` tokens that the target says most often, ascending; the lower id first among equals.

    Where it has said fewer different ones, the lowest of the others fill up.
    """
    counts = Counter(token for answer in answers for token in answer.said)
    ranked = sorted(range(vocab_size), key=lambda token: (-counts[token], token))
    return torch.tensor(sorted(ranked[:size]))


def coverage(answers: Iterable[Answer], target_ids: Tensor) -> float:
    """Share of what the target said that the head could have drafted."""
    drafted = set(target_ids.tolist())
    said = [token in drafted for answer in answers for token in answer.said]
    return sum(said) / len(said) if said else 0.0
