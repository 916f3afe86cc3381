"""How much of the noise a draft is drawn with follows from which weight has foretold more."""

from __future__ import annotations

import numpy as np
import pytest

from services.generation.drafting.eagle3.children import DOUBTED, UNCOUPLED, WHOLE, Children, Draws, best_children
from services.generation.drafting.eagle3.coupling import Coupling
from services.generation.engine.sampling.philox import gumbel

VOCABULARY, WIDTH, SEED, CHOICE, POSITION = 200, 3, 11, 2, 77


def said(logits: np.ndarray, temperature: float, rule: int) -> tuple[list[int], tuple[int, int]]:
    """The tokens that come first, and `firsts`."""
    draws = Draws(
        np.array([temperature]), np.array([SEED], np.uint64), np.array([CHOICE], np.int32),
        np.array([POSITION], np.int32), np.array([rule], np.int32), np.array([[0.0, 1.0, 0.0]]),
    )  # fmt: skip
    found = Children(np.empty((1, WIDTH), np.int64), np.empty((1, WIDTH), np.float32), np.full((1, 2), -1, np.int64))
    asked = np.empty((1, 0), np.int64)
    best_children(logits[None], np.arange(VOCABULARY), draws, asked, np.empty((1, 0), np.float32), found)
    return found.tokens[0].tolist(), (int(found.firsts[0, WHOLE]), int(found.firsts[0, DOUBTED]))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("spread", [0.1, 1.5, 6.0])
def test_the_noise_is_weighed_by_the_probability_of_all_but_the_likeliest(seed: int, spread: float) -> None:
    logits = (np.random.default_rng(seed).standard_normal(VOCABULARY) * spread).astype(np.float32)
    scores = logits.astype(np.float64) / 0.7
    noise = np.array(
        [gumbel(np.uint64(SEED), np.int32(CHOICE), np.int32(POSITION), np.int64(v)) for v in range(VOCABULARY)]
    )
    shares = np.exp(scores - scores.max())
    doubt = 1.0 - shares.max() / shares.sum()
    near = np.where(scores > scores.max() - 10.0, 0.0, -np.inf)
    best = {WHOLE: scores + noise + near, DOUBTED: scores + doubt * noise + near, UNCOUPLED: scores}
    for rule, expected in best.items():
        tokens, firsts = said(logits, 0.7, rule)
        assert tokens == np.argsort(-expected)[:WIDTH].tolist()
        if rule != UNCOUPLED:
            assert firsts == (best[WHOLE].argmax(), best[DOUBTED].argmax())


def test_without_noise_there_is_nothing_to_tell_apart() -> None:
    logits = np.linspace(0.0, 9.0, VOCABULARY, dtype=np.float32)
    for temperature, rule in ((0.0, WHOLE), (0.0, DOUBTED), (1.0, UNCOUPLED)):
        assert said(logits, temperature, rule) == ([199, 198, 197], (199, 199))


def test_the_whole_noise_until_the_other_has_been_right_more_often() -> None:
    coupling = Coupling()
    assert coupling.rule == WHOLE
    coupling.saw((5, 6), 6)
    assert coupling.rule == DOUBTED
    coupling.saw((5, 6), 7)
    coupling.saw((6, 6), 6)  # where both say the same, neither wins
    assert coupling.rule == DOUBTED
    for _ in range(2):
        coupling.saw((5, 6), 5)
    assert coupling.rule == WHOLE


def test_what_was_long_ago_counts_less() -> None:
    coupling = Coupling()
    for _ in range(1000):
        coupling.saw((5, 6), 5)
    for _ in range(70):  # not a thousand
        coupling.saw((5, 6), 6)
    assert coupling.rule == DOUBTED
