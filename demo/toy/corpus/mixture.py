"""Tokenised domains and the order in which training windows are taken from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerFast

from demo.toy.corpus import chat, code, passages, tools
from demo.toy.corpus.dialogue import Split, render

Tokens = npt.NDArray[np.uint16]

WEIGHTS: Mapping[str, float] = {"code": 0.40, "tools": 0.18, "passages": 0.27, "chat": 0.15}
"""Share of the training windows that each domain gets."""
DOMAINS = tuple(WEIGHTS)


def texts(domain: str, split: Split, dialogues: int) -> Iterator[str]:
    """The rendered documents of a domain; `dialogues` is how many to generate, the code domain has a fixed size."""
    if domain == "code":
        return code.documents(split)
    builders = {"tools": tools.documents, "passages": passages.documents, "chat": chat.documents}
    return map(render, builders[domain](split, dialogues))


def tokenise(tokenizer: PreTrainedTokenizerFast, domain: str, split: Split, dialogues: int) -> Tokens:
    """All documents of a domain, one after the other, as one row of token ids."""
    encoded = tokenizer.backend_tokenizer.encode_batch_fast(
        list(texts(domain, split, dialogues)), add_special_tokens=False
    )
    return np.concatenate([np.asarray(e.ids, dtype=np.uint16) for e in encoded])


@dataclass(slots=True)
class Mixture:
    """Draws training windows; what it draws next depends on `seed` and on `drawn` alone.

    A domain's tokens are read in windows of `length` + 1 in a fresh shuffled order each epoch; an epoch shifts
    the window borders, so that no document is cut at the same place twice.
    """

    domains: Mapping[str, Tokens]
    length: int
    seed: int
    drawn: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DOMAINS, 0))

    def batch(self, size: int) -> npt.NDArray[np.int64]:
        """`size` windows, shape (size, length + 1)."""
        return np.stack([self._next_window() for _ in range(size)])

    def state(self) -> dict[str, Any]:
        return {"drawn": dict(self.drawn), "length": self.length, "seed": self.seed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken; ValueError where it was taken with other windows."""
        if (state["length"], state["seed"]) != (self.length, self.seed):
            raise ValueError(
                f"the checkpoint was made with windows of {state['length']} and seed {state['seed']}: use the same ones"
            )
        self.drawn = dict(state["drawn"])

    def _next_window(self) -> npt.NDArray[np.int64]:
        total = sum(self.drawn.values()) + 1
        domain = max(DOMAINS, key=lambda name: WEIGHTS[name] * total - self.drawn[name])
        window = self._window(domain, self.drawn[domain])
        self.drawn[domain] += 1
        return window

    def _window(self, domain: str, number: int) -> npt.NDArray[np.int64]:
        tokens = self.domains[domain]
        per_epoch = (len(tokens) - 1) // self.length - 1
        epoch, position = divmod(number, per_epoch)
        rng = np.random.default_rng([self.seed, DOMAINS.index(domain), epoch])
        offset = int(rng.integers(self.length))
        start = offset + int(rng.permutation(per_epoch)[position]) * self.length
        return tokens[start : start + self.length + 1].astype(np.int64)


def fixed_windows(tokens: Tokens, length: int, count: int) -> npt.NDArray[np.int64]:
    """`count` windows spread evenly over held-out tokens, shape (count, length + 1)."""
    starts = np.linspace(0, len(tokens) - length - 1, count).astype(int)
    return np.stack([tokens[s : s + length + 1] for s in starts]).astype(np.int64)
