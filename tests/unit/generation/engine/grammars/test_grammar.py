"""The mask: what may follow, ends exactly where the grammar may end, a function of the accepted tokens alone."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generation.engine.engine_error import UnusableLogits
from services.generation.engine.grammars.structured_outputs import StructuredOutputs
from services.generation.engine.sampling.processors import GrammarMask, forbid
from tests.examples import examples
from tests.fakes.grammars import CONSTRAINTS, VOCAB, decoded, encoded, grammar, ids

END = grammar(CONSTRAINTS[1]).eos
STOP = 300


def mask(source: StructuredOutputs, *ends: int) -> GrammarMask:
    return GrammarMask(grammar(source), frozenset(ends or (END,)))


def test_only_what_can_go_on_to_a_choice_is_allowed_and_the_end_where_one_is_whole() -> None:
    choices = ["signed", "signed and sent"]
    laid = mask(StructuredOutputs("choice", json.dumps(choices)))
    assert all("signed".startswith(decoded([token])) for token in ids(laid))
    for token in encoded("signed"):
        assert token in ids(laid)
        laid.accept(token)
    after = ids(laid)
    assert END in after
    assert all(" and sent".startswith(decoded([token])) for token in after if token != END)
    for token in encoded(" and sent"):
        assert END not in ids(laid) or token == encoded(" and sent")[0]
        laid.accept(token)
    assert ids(laid) == [END]


def test_stop_tokens_are_allowed_exactly_where_the_grammar_may_end() -> None:
    zero = encoded("0")[0]
    laid = mask(StructuredOutputs("regex", "[0-9]{2,3}"), STOP, zero)
    one = encoded("1")[0]
    seen = []
    for _ in range(3):
        seen.append({token: token in ids(laid) for token in (END, STOP, zero, one)})
        laid.accept(one)
    assert seen[0] == seen[1] == {END: False, STOP: False, zero: False, one: True}
    assert seen[2] == {END: False, STOP: True, zero: True, one: True}
    assert ids(laid) == sorted((zero, STOP))


@given(seed=st.integers(0, 2**32), source=st.sampled_from(CONSTRAINTS))
@settings(deadline=None, max_examples=examples(60))
def test_the_mask_depends_on_the_accepted_tokens_alone(seed: int, source: StructuredOutputs) -> None:
    rng = random.Random(seed)
    asked, told = mask(source), mask(source)
    for _ in range(rng.randrange(1, 25)):
        allowed = ids(asked)
        for candidate in range(VOCAB):
            assert told.allows(candidate) in (None, candidate in allowed)
        other = grammar(source).matcher()  # drafts come and go on the lexer that all share
        for _ in range(rng.randrange(3)):
            other.validate_tokens([rng.randrange(VOCAB) for _ in range(5)])
            other.compute_ff_tokens()
            other.consume_token(rng.choice(allowed))
        token = rng.choice(allowed)
        if token == END:
            break
        asked.accept(token)
        told.accept(token)
    assert ids(told) == ids(asked)


@given(bits=st.lists(st.booleans(), min_size=1, max_size=200))
def test_forbidden_tokens_get_minus_infinity_and_no_other_bit_changes(bits: list[bool]) -> None:
    logits = np.linspace(-3, 3, len(bits), dtype=np.float32)
    words = np.packbits(np.array(bits, np.uint8), bitorder="little")
    words = np.concatenate([words, np.full(-len(words) % 4, 255, np.uint8)]).view(np.uint32)
    masked = logits.copy()
    forbid(masked, words)
    np.testing.assert_array_equal(masked, np.where(bits, logits, np.float32(-np.inf)))


def test_a_token_that_the_grammar_does_not_know_ends_in_an_error_that_says_so() -> None:
    laid = mask(StructuredOutputs("regex", "[0-9]{2}"))
    laid.accept(encoded("x")[0])
    with pytest.raises(UnusableLogits, match="the grammar leaves no token"):
        laid.apply(np.zeros(VOCAB, np.float32))
    assert grammar(StructuredOutputs("regex", "[0-9]{2}")).failed is False  # it was compiled anew
