"""Draft trees: which nodes are expanded, kept and judged, on trees small enough to work out by hand."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.drafting.acceptance import NEAR, OWN, RequestAcceptance, model_kind
from services.generation.drafting.copies import END, Copies, OwnText
from services.generation.drafting.draft_tree.candidates import MOST_ASKED, DraftShape, Vocabulary, sampling_of
from services.generation.drafting.draft_tree.draft_tree import DraftTree
from services.generation.drafting.draft_tree.nodes import MOST_COPIED, Growth, Level, add_level, copies_below
from services.generation.engine.economics import Costs
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.sampling.race import gumbel
from services.generation.engine.tree import TokenTree
from services.generation.target.arrays import Int64
from tests.fakes.drafters import budget as budget_of


def costs(row: float, step: float = 0.0, step_row: float = 0.0) -> Costs:
    """A token takes a second without drafts."""
    return Costs(1.0 + row * np.arange(65), step, step_row)


FREE = costs(row=1e-6, step=1e-6, step_row=1e-6)
BOLD = budget_of(nodes=64, depth=31, breakeven=1e-3)


def tree(
    depth: int = 3, width: int = 2, most: int = 20, cost: Costs = FREE, acceptance: RequestAcceptance | None = None
) -> DraftTree:
    return DraftTree(7, acceptance or RequestAcceptance(), DraftShape(depth, width, most), cost)


def level(tokens: Sequence[Sequence[int]], shares: Sequence[Sequence[float]], asked: Sequence[float] = ()) -> Level:
    """`asked` are the shares of the copies below the first node, of a tree whose frontier is its root."""
    rows = len(tokens)
    copies, given_ = np.full((rows, MOST_ASKED), -1), np.full((rows, MOST_ASKED), -1.0, np.float32)
    given_[0, : len(asked)] = asked
    return Level(np.array(tokens, np.int64), np.array(shares, np.float32), copies, given_)


def expand(grown: DraftTree, output: Level) -> None:
    """Expand the frontier's nodes with a model's given output."""
    grown.steps += 1
    growth = Growth(grown.shape.width, grown.shape.tree_tokens, grown.steps, grown.steps == grown.shape.depth)
    grown._count, grown.frontier = add_level(grown._nodes, len(grown), grown.frontier, output, growth, grown.economics)


def asked(grown: DraftTree) -> Int64:
    """Copies below the frontier's nodes, which a model is asked about."""
    found = np.empty((len(grown.frontier), MOST_ASKED), np.int64)
    copies_below(grown.nodes, len(grown), grown.frontier, found)
    return found


def add(grown: DraftTree, *rows: list[int], length: int = 9, source: int = OWN, least: float = 0.0) -> None:
    padded = np.array([(row + [END] * 31)[:31] for row in rows], np.int64)
    grown.add([Copies(source, padded, np.full(len(rows), length))], replace(BOLD, breakeven=least))


def paths(drafted: TokenTree) -> set[tuple[int, ...]]:
    found = [(drafted.tokens[0],)]
    for token, parent in zip(drafted.tokens[1:], drafted.parents[1:], strict=True):
        found.append((*found[parent], token))
    return set(found)


def test_the_likeliest_nodes_of_a_level_are_expanded() -> None:
    grown = tree()
    expand(grown, level([[1, 2]], [[0.6, 0.3]]))
    assert grown.frontier.tolist() == [1, 2]
    expand(grown, level([[3, 4], [5, 6]], [[0.1, 0.05], [0.9, 0.05]]))
    assert grown.nodes["token"][grown.frontier].tolist() == [5, 3]


def test_a_tree_ends_at_its_depth_and_where_the_model_says_nothing() -> None:
    grown = tree(depth=1)
    expand(grown, level([[1, -1]], [[0.6, 0.0]]))
    assert len(grown.frontier) == 0
    assert grown.token_tree().tokens == (7, 1)


@pytest.mark.parametrize(("most", "tokens"), [(1, (7, 1)), (2, (7, 1, 3)), (20, (7, 1, 3, 2))])
def test_the_best_nodes_are_kept_and_the_path_of_first_choices_leads(most: int, tokens: tuple[int, ...]) -> None:
    grown = tree(depth=2, most=most)
    expand(grown, level([[1, 2]], [[0.7, 0.2]]))
    expand(grown, level([[3, -1], [-1, -1]], [[0.9, 0.0], [0.0, 0.0]]))
    drafted = grown.token_tree()
    assert drafted.tokens == tokens
    assert drafted.parents[:3] == (-1, 0, 1)[: len(drafted)]


def test_nodes_that_do_not_pay_for_their_rows_are_left_out_and_dear_steps_not_taken() -> None:
    grown = tree(cost=costs(row=0.4))
    expand(grown, level([[1, 2]], [[0.75, 0.2]]))
    assert grown.token_tree().tokens == (7, 1)
    grown = tree(cost=costs(row=0.0, step=5.0))
    expand(grown, level([[1, 2]], [[0.75, 0.2]]))
    assert len(grown.frontier) == 0


def test_rows_pay_together_where_one_alone_does_not() -> None:
    first_is_dear = Costs(np.array([1.0, 1.9, 2.0, 2.1]))
    grown = tree(cost=first_is_dear)
    expand(grown, level([[1, 2]], [[0.8, 0.15]]))
    assert len(grown.token_tree()) == 1
    assert grown.frontier.tolist() == [1]  # the nodes below it would be cheap
    expand(grown, level([[3, 4]], [[0.9, 0.05]]))
    expand(grown, level([[5, 6]], [[0.9, 0.05]]))
    assert grown.token_tree().tokens == (7, 1, 3, 5)


def test_what_copies_have_in_common_stands_once() -> None:
    grown = tree()
    add(grown, [1, 2, 3], [1, 2, 4], [5])
    add(grown, [1, 2, 3, 6], source=NEAR)
    assert paths(grown.token_tree()) == {
        (7,), (7, 1), (7, 1, 2), (7, 1, 2, 3), (7, 1, 2, 4), (7, 5), (7, 1, 2, 3, 6)
    }  # fmt: skip
    assert len(grown.token_tree()) == len(grown) == 7


def test_a_models_words_and_copies_make_one_tree() -> None:
    grown = tree()
    add(grown, [1, 2, 3])
    expand(grown, level([[1, 5]], [[0.5, 0.3]]))
    assert paths(grown.token_tree()) == {(7,), (7, 1), (7, 1, 2), (7, 1, 2, 3), (7, 5)}
    assert grown.nodes["model_kind"].tolist() == [-1, model_kind(1, 0.5, 1), -1, -1, model_kind(0, 0.3, 1)]
    assert 1 in grown.frontier
    assert asked(grown).tolist()[grown.frontier.tolist().index(1)] == [2, -1, -1, -1]


@pytest.mark.parametrize(("share", "kept"), [(1e-4, False), (-1.0, True)])
def test_a_copy_that_the_model_finds_unlikely_is_given_up_with_all_below_it(share: float, kept: bool) -> None:
    grown = tree(cost=costs(row=0.3))
    add(grown, [1, 2])
    assert asked(grown).tolist() == [[1, -1, -1, -1]]
    said_ = level([[5, 6]], [[0.6, 0.05]], [share])
    expand(grown, said_._replace(asked=asked(grown)))
    assert ((7, 1, 2) in paths(grown.token_tree())) is kept


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=200), st.integers(1, 16), st.integers(1, 40), st.integers(0, 40),
    st.sampled_from((0.0, 0.05, 0.4)),
)  # fmt: skip
def test_trees_keep_to_their_bounds_whatever_is_copied(
    tokens: list[int], guesses: int, depth: int, most: int, least: float
) -> None:
    text, budget = OwnText(), replace(budget_of(nodes=most, depth=depth, breakeven=0.01), breakeven=least)
    text.extend(tokens)
    grown = DraftTree(tokens[-1], RequestAcceptance(), DraftShape(depth, 0, most), FREE)
    grown.add([text.copies(2 * guesses)] * 3, budget, most=guesses)
    drafted = grown.token_tree()
    assert len(grown) <= 1 + MOST_COPIED
    assert len(drafted) <= 1 + most
    assert max(drafted.depths()) <= depth
    assert len(set(zip(drafted.tokens, drafted.parents, strict=True))) == len(drafted)
    parents = drafted.parents
    assert sum(node not in parents for node in range(1, len(drafted))) <= guesses


VOCABULARY, WIDTH, SEED, CHOICE, POSITION = 200, 3, 11, 2, 77
EVERYTHING = Vocabulary(np.arange(VOCABULARY), np.arange(VOCABULARY))


def request(temperature: float) -> EngineRequest:
    return EngineRequest("r", (1,), SamplingParams(temperature=temperature, seed=SEED), CHOICE)


def candidates_of(logits: np.ndarray, temperature: float, *, noise: float) -> list[int]:
    """The likeliest tokens."""
    sampling, grown = sampling_of(request(temperature), noise=noise), tree(depth=1, width=WIDTH, most=WIDTH)
    sampling["position"] = POSITION
    grown.expand(logits[None], EVERYTHING, sampling)
    return list(grown.nodes["token"][1:].tolist())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("spread", [0.1, 1.5, 6.0])
def test_the_noise_is_that_of_the_sampler_as_much_of_it_as_a_model_takes(seed: int, spread: float) -> None:
    logits = (np.random.default_rng(seed).standard_normal(VOCABULARY) * spread).astype(np.float32)
    scores = logits.astype(np.float64) / 0.7
    drawn = np.array(
        [gumbel(np.uint64(SEED), np.int32(CHOICE), np.int32(POSITION), np.int64(v)) for v in range(VOCABULARY)]
    )
    near = np.where(scores > scores.max() - 10.0, 0.0, -np.inf)
    for noise in (1.0, 0.8, 0.0):
        expected = scores + noise * drawn + near
        assert candidates_of(logits, 0.7, noise=noise) == np.argsort(-expected)[:WIDTH].tolist()


@pytest.mark.parametrize(("temperature", "shares"), [(0.0, (0.92, 0.059, 0.021)), (1.0, (0.55, 0.33, 0.12))])
def test_a_models_confidence_is_the_share_of_its_first_token_where_no_noise_is_drawn(
    temperature: float, shares: tuple[float, ...]
) -> None:
    logits = np.full((1, VOCABULARY), -100.0, np.float32)
    logits[0, [5, 6, 7]] = np.log([0.55, 0.33, 0.12])
    grown = tree(depth=1, width=WIDTH, most=WIDTH)
    grown.expand(logits, EVERYTHING, sampling_of(request(temperature), noise=0.0), np.array([0.92], np.float32))
    assert grown.nodes["token"][1:].tolist() == [5, 6, 7]
    assert grown.nodes["model_kind"][1:].tolist() == [model_kind(0, share, 1) for share in shares]
