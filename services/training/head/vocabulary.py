"""Which of the target's tokens a head can draft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor

from services.training.answers.answer import Answer


def frequent_tokens(answers: Iterable[Answer], size: int, vocab_size: int, known: Iterable[int] = ()) -> Tensor:
    """The `size` tokens that the target says most often, ascending; among equals `known` ones first, then the lower id.

    Where it has said fewer different ones, others fill up, known ones first.
    """
    counts, kept = Counter(token for answer in answers for token in answer.said), frozenset(known)
    ranked = sorted(range(vocab_size), key=lambda token: (-counts[token], token not in kept, token))
    return torch.tensor(sorted(ranked[:size]))


def coverage(answers: Iterable[Answer], target_ids: Tensor) -> float:
    """Share of what the target said that the head could have drafted."""
    drafted = set(target_ids.tolist())
    said = [token in drafted for answer in answers for token in answer.said]
    return sum(said) / len(said) if said else 0.0
