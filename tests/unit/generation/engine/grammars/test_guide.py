"""Draft trees fitted to a grammar: nothing forbidden, all that is forced, within bounds."""

from __future__ import annotations

import json
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from services.generation.engine.grammars.guide import GrammarGuide
from services.generation.engine.grammars.structured_outputs import StructuredOutputs
from services.generation.engine.sampling.processors import GrammarMask
from services.generation.engine.tree import TokenTree
from tests.examples import examples
from tests.fakes.grammars import CONSTRAINTS, VOCAB, encoded, grammar, ids

END = grammar(CONSTRAINTS[1]).eos
ROOT = 7
TWO = StructuredOutputs("choice", json.dumps(["the ledger keeps", "the drafter guesses"]))


def guide(source: StructuredOutputs) -> GrammarGuide:
    return GrammarGuide(grammar(source), frozenset((END,)), 1)


def paths(tree: TokenTree) -> list[list[int]]:
    """From below the root to each node."""
    found: list[list[int]] = []
    for node, parent in enumerate(tree.parents):
        found.append([] if node == 0 else [*found[parent], tree.tokens[node]])
    return found


def test_a_forced_stretch_is_drafted_for_nothing() -> None:
    forced = guide(StructuredOutputs("choice", '["every receipt is signed"]'))
    assert forced.forces
    text = encoded("every receipt is signed")
    assert forced.fit(TokenTree.root(ROOT), 64, 64) == TokenTree.chain((ROOT, *text, END))
    assert forced.fit(TokenTree.root(ROOT), 3, 64) == TokenTree.chain((ROOT, *text[:2]))
    assert forced.fit(TokenTree.root(ROOT), 64, 1) == TokenTree.chain((ROOT, text[0]))
    forced.follow([ROOT, *text])
    assert forced.fit(TokenTree.root(text[-1]), 64, 64) == TokenTree.chain((text[-1], END))


def test_a_forbidden_branch_is_cut_and_an_allowed_one_grows_by_what_it_forces() -> None:
    chosen = guide(TWO)
    done = encoded("the")
    chosen.follow([ROOT, *done])
    assert not chosen.forces
    said = encoded("the drafter guesses")[len(done) :]
    proposed = TokenTree((done[-1], 5, said[0], 9), (-1, 0, 0, 1))
    assert chosen.fit(proposed, 64, 64) == TokenTree.chain((done[-1], *said, END))


@given(seed=st.integers(0, 2**32), source=st.sampled_from(CONSTRAINTS))
@settings(deadline=None, max_examples=examples(80))
def test_no_node_is_forbidden_none_allowed_is_lost_and_the_bounds_hold(seed: int, source: StructuredOutputs) -> None:
    rng = random.Random(seed)
    fitting, prefix = guide(source), [ROOT]
    for _ in range(rng.randrange(12)):
        allowed = _allowed(source, prefix[1:])
        token = rng.choice(allowed)
        if token == END:
            break
        prefix.append(token)
    fitting.follow(prefix)
    tokens, parents = [prefix[-1]], [-1]
    found: list[list[int]] = [[]]
    for _ in range(rng.randrange(12)):
        parent = rng.randrange(len(tokens))
        allowed = _allowed(source, [*prefix[1:], *found[parent]]) if END not in found[parent] else [3]
        token = rng.choice(allowed) if rng.random() < 0.7 and allowed else rng.randrange(VOCAB)
        if [*found[parent], token] not in found:
            tokens.append(token)
            parents.append(parent)
            found.append([*found[parent], token])
    proposed = TokenTree(tuple(tokens), tuple(parents))
    fitted = fitting.fit(proposed, 400, 64)
    kept = {tuple(path) for path in paths(fitted)}
    for path in kept:
        assert not path or path[-1] in _allowed(source, [*prefix[1:], *path[:-1]])
    for path in paths(proposed):
        legal = all(t in _allowed(source, [*prefix[1:], *path[:n]]) for n, t in enumerate(path) if END not in path[:n])
        assert (tuple(path) in kept) == (legal and END not in path[:-1])
    nodes, depth = rng.randrange(1, 9), rng.randrange(1, 5)
    small = fitting.fit(proposed, nodes, depth)
    assert len(small) <= nodes
    assert max(small.depths()) <= depth
    assert {tuple(path) for path in paths(small)} <= kept


def _allowed(source: StructuredOutputs, output: list[int]) -> list[int]:
    """The tokens that the sampler's own mask allows after an output; none where the grammar forbids the output."""
    laid = GrammarMask(grammar(source), frozenset((END,)))
    for token in output:
        if token not in ids(laid):
            return []
        laid.accept(token)
    return ids(laid)
