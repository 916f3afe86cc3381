"""Drafts that copy text: what followed the same words before, n-grams of lookahead, a tenant's past outputs."""

import random
from collections.abc import Sequence
from threading import Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.drafting.acceptance import NEAR, OWN
from services.generation.drafting.copies import END, LONGEST, Copies, OwnText, copies_from
from services.generation.drafting.lookahead import JacobiWindow, LookaheadDrafter, NgramPool
from services.generation.drafting.past_outputs import MOST_PASTS, MOST_TOKENS, Past, Pasts
from services.generation.drafting.rest import RestDrafter
from services.generation.engine.cost import PassCost
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.tree import TokenTree
from services.generation.target.cpu import CpuTarget
from tests.fakes.drafters import budget as budget_of
from tests.fakes.engine_runs import run
from tests.unit.generation.engine.test_identity import alone, battery, check_unchanged, parameters

TOKENS = st.lists(st.integers(0, 3), max_size=60)


def common_end(one: list[int], other: list[int]) -> int:
    pairs = zip(reversed(one), reversed(other), strict=False)
    return min(LONGEST, next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other))))


def plain(copies: Copies) -> list[tuple[int, list[int]]]:
    return list(zip(copies.lengths.tolist(), copies.tokens.tolist(), strict=True))


@given(TOKENS, st.integers(0, 8), st.integers(1, 40))
def test_own_text_is_copied_from_its_longest_matches_and_goes_round(tokens: list[int], most: int, depth: int) -> None:
    text = OwnText()
    text.extend(tokens)
    places = [place for place in range(len(tokens) - 1, 0, -1) if common_end(tokens[:place], tokens)]
    places.sort(key=lambda place: -common_end(tokens[:place], tokens))  # stable: the latest first among equals
    expected = [
        (common_end(tokens[:place], tokens), [tokens[place + i % (len(tokens) - place)] for i in range(depth)])
        for place in places[:most]
    ]
    found = text.copies(most, depth)
    assert plain(found) == expected
    assert found.source == OWN


@given(TOKENS, TOKENS)
def test_a_text_that_grows_is_that_of_a_new_one(tokens: list[int], more: list[int]) -> None:
    grown, fresh = OwnText(), OwnText()
    grown.extend(tokens)
    grown.extend(tokens + more)
    fresh.extend(tokens + more)
    assert plain(grown.copies(8)) == plain(fresh.copies(8))
    assert grown.end(5).tolist() == (tokens + more)[-5:]


@given(st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=4), TOKENS, st.integers(1, 3), st.integers(1, 6))
def test_no_match_and_no_copy_crosses_the_end_of_a_piece(
    pieces: list[list[int]], end: list[int], shortest: int, most: int
) -> None:
    text = [token for piece in pieces for token in (*piece, END)]
    expected = [
        (common_end(piece[:at], end), (piece[at : at + 5] + [END] * 5)[:5])
        for piece in reversed(pieces)
        for at in range(len(piece) - 1, 0, -1)
        if common_end(piece[:at], end) >= shortest
    ]
    expected.sort(key=lambda match: -match[0])
    found = copies_from(np.array(text, np.int64), NEAR, np.array(end, np.int64), shortest, most, 5)
    assert plain(found) == expected[:most]


CHEAP, DEAR = PassCost.line(fixed=1.0, row=0.005), PassCost.line(fixed=1.0, row=10.0)


def test_the_pool_keeps_64_and_drops_the_least_recently_used() -> None:
    pool = NgramPool()
    for first in range(64):
        pool.add((first, 1, 2))
    pool.add((0, 1, 2))
    pool.add((99, 1, 2))
    assert len(pool) == 64
    assert pool.after(0) == [(1, 2)]
    assert pool.after(1) == []
    assert pool.after(99) == [(1, 2)]


def test_a_window_of_two_columns_yields_trigrams_on_its_second_pass() -> None:
    window = JacobiWindow(2, 3, [8, 7])
    assert window.nodes(0, 1) == ([7, 8], [0, 1])
    assert window.advance([1, 2]) == []
    assert window.nodes(0, 1) == ([7, 8, 1, 2], [0, 1, 1, 2])
    assert window.advance([3, 4]) == [(7, 1, 3), (8, 2, 4)]
    assert window.nodes(0, 5) == ([1, 2, 3, 4], [0, 5, 5, 6])
    assert window.rows == 4


def draft_for(prompt: list[int], **options: int):  # type: ignore[no-untyped-def]
    return LookaheadDrafter().begin(
        EngineRequest("r", tuple(prompt), SamplingParams(), method="lookahead", parameters=options)
    )


def test_a_text_that_repeats_is_continued() -> None:
    prompt = [1, 2, 3, 4, 5, 6, 1, 2, 3]
    tree = draft_for(prompt, window=0).propose(prompt, budget_of(nodes=20, depth=4, breakeven=0.01))
    assert tree.tokens[:3] == (3, 4, 5)
    assert tree.parents[:3] == (-1, 0, 1)


def test_width_shrinks_to_zero_when_guesses_keep_failing_and_comes_back_when_they_hold() -> None:
    draft, budget = draft_for([1, 2], window=0), budget_of(nodes=20, depth=8, breakeven=0.3)
    logits = np.zeros((21, 300), np.float32)
    tokens = [1, 2]

    def step(token: int) -> int:
        tree = draft.propose(tokens, budget)
        tokens.append(token)
        draft.observe(tokens, tree, [0], logits[: len(tree)])
        return len(tree) - 1

    for number in range(120):
        step(1 if number % 2 == 0 else 100 + number)
    assert sum(step(1 if number % 2 == 0 else 250 - number) for number in range(20)) == 0
    assert sum(step((5, 6, 7)[number % 3]) for number in range(60)) > 20


def test_a_window_asked_for_runs_in_every_pass_and_fills_the_pool() -> None:
    draft, budget = draft_for([1, 2, 3], window=2, ngram=3, guesses=2), budget_of(nodes=30, depth=20, breakeven=0.01)
    tokens = [1, 2, 3]
    for number in range(6):
        tree = draft.propose(tokens, budget)
        logits = np.zeros((len(tree), 50), np.float32)
        logits[:, 40 + number % 3] = 1.0
        tokens.append(20 + number)
        draft.observe(tokens, tree, [0], logits)
        assert len(tree) > 2
    assert len(draft.pool) > 0


@pytest.mark.parametrize("proposed", [True, False], ids=["its tree found no room", "it was preempted"])
def test_a_window_outlives_a_pass_without_it(proposed: bool) -> None:
    draft, budget = draft_for([1, 2, 3], window=3, ngram=4, guesses=1), budget_of(nodes=30, depth=20, breakeven=0.01)
    tokens = [1, 2, 3]
    for number in range(8):
        tree = draft.propose(tokens, budget) if number != 4 or proposed else TokenTree.root(tokens[-1])
        ran = tree if number != 4 else TokenTree.root(tokens[-1])
        tokens.append(20 + number)
        draft.observe(tokens, ran, [0], np.zeros((len(ran), 50), np.float32))
    assert len(draft.propose(tokens, budget)) > 3 * 3


def test_what_the_window_saw_is_guessed_where_the_text_has_nothing() -> None:
    draft = draft_for([1, 2, 3], window=2, ngram=3)
    draft.pool.add((3, 40, 41))
    tree = draft.propose([1, 2, 3], budget_of(nodes=9, depth=2, breakeven=0.01))
    assert tree.tokens == (3, 40, 41)


def test_a_tree_is_cut_to_what_a_pass_can_take() -> None:
    tree = TokenTree((0, 1, 99, 3, 4, 5), (-1, 0, 1, 2, 1, 4))
    assert tree.cut(6, 9, 100) is tree
    assert tree.cut(6, 9, 50) == TokenTree((0, 1, 4, 5), (-1, 0, 1, 2))
    assert tree.cut(6, 2, 50) == TokenTree((0, 1, 4), (-1, 0, 1))
    assert tree.cut(2, 9, 100) == TokenTree((0, 1), (-1, 0))


BOLD = budget_of(nodes=64, depth=16, breakeven=0.001)


def request(tenant: str | None, request_id: str = "r", adapter: str | None = None, **sampling: object) -> EngineRequest:
    params = SamplingParams(**{"max_tokens": 60, "ignore_eos": True, **sampling})  # type: ignore[arg-type]
    return EngineRequest(request_id, (5, 9), params, method="lookahead", tenant=tenant, adapter=adapter)


def emitted(drafter: LookaheadDrafter, asked: EngineRequest, output: Sequence[int]) -> None:
    """A request has come to its end with an output."""
    draft = drafter.begin(asked)
    draft.finish([*asked.prompt, *output])
    draft.release()


def drafted(drafter: LookaheadDrafter, asked: EngineRequest, tokens: Sequence[int] = (7, 1, 2, 3)) -> set[int]:
    return set(drafter.begin(asked).propose(list(tokens), BOLD).tokens[1:])


@pytest.mark.slow
@given(seed=st.integers(0, 2**32))
@battery
def test_no_past_changes_a_token(target: CpuTarget, cramped_target: CpuTarget, seed: int) -> None:
    rng = random.Random(seed)
    pasts = Pasts()
    drafters = {"lookahead": LookaheadDrafter(pasts), "rest": RestDrafter({}, pasts)}
    prompts = [tuple(rng.randrange(384) for _ in range(rng.choice((1, 3, 40, 65)))) for _ in range(2)]
    requests = []
    for number in range(5):
        method, others = rng.choice((("lookahead", ()), ("lookahead", ()), ("rest", ("lookahead",)), ("off", ())))
        asked = EngineRequest(
            f"r{number}", rng.choice(prompts), parameters(rng), method=method, next_methods=others,
            tenant=rng.choice(("a", "b", None)),
        )  # fmt: skip
        requests.append(asked)
    expected = {asked.key: alone(target, asked) for asked in requests}
    for serving in (target, cramped_target):
        check_unchanged(serving, requests, expected, drafters, rng, late=25)
        if rng.random() < 0.5:
            pasts.forget(rng.choice("ab"), rng.choice((None, requests[0].key)))


def test_what_was_said_before_takes_few_passes(target: CpuTarget) -> None:
    drafters = {"lookahead": LookaheadDrafter()}
    first, again = request("a", "1", temperature=1.0, seed=4), request("a", "2", temperature=1.0, seed=4)
    outcomes = [run(target, [asked], drafters=drafters).outcomes[asked.key] for asked in (first, again)]
    assert outcomes[0].token_ids == outcomes[1].token_ids
    assert outcomes[1].metrics.target_passes < 20 < outcomes[0].metrics.target_passes


def test_methods_share_past_outputs_and_keep_one_of_each_request() -> None:
    pasts = Pasts()
    lookahead, rest = LookaheadDrafter(pasts), RestDrafter({}, pasts)
    drafts = [drafter.begin(request("a")) for drafter in (lookahead, rest)]  # a request that two methods draft for
    for draft in drafts:
        draft.finish([5, 9, 1, 2, 3, 10])
    assert pasts.of(request("a")).text.tolist() == [1, 2, 3, 10, -1]
    for drafter in (lookahead, rest):
        assert 10 in drafter.begin(request("a")).propose([7, 1, 2, 3], BOLD).tokens
    rest.forget("a", request("a").key)
    assert drafted(lookahead, request("a")) == set()


def test_a_tenant_is_drafted_for_from_its_own_outputs_with_the_same_adapter_alone() -> None:
    drafter = LookaheadDrafter()
    for number, (tenant, adapter) in enumerate((("a", None), ("b", None), ("a", "adapter"), (None, None))):
        emitted(drafter, request(tenant, str(number), adapter), [1, 2, 3, 10 * (number + 1)])
    assert drafted(drafter, request("a")) == {10}
    assert drafted(drafter, request("b")) == {20}
    assert drafted(drafter, request("a", adapter="adapter")) == {30}
    for other in ("A", "", "a ", None):
        assert drafted(drafter, request(other)) == set()


def test_not_even_how_often_copies_hold_crosses_from_one_tenant_to_another() -> None:
    used, fresh, likely = LookaheadDrafter(), LookaheadDrafter(), budget_of(nodes=64, depth=16, breakeven=0.3)
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    for drafter in (used, fresh):
        emitted(drafter, request("b", "b"), [1, 2, 3, 4, 5])
    for _ in range(50):
        draft = used.begin(request("a"))
        tree = draft.propose(tokens, likely)
        draft.observe([*tokens, 99], tree, [0], np.zeros((len(tree), 1), np.float32))
    trees = [drafter.begin(request("b")).propose(tokens, likely) for drafter in (used, fresh)]
    assert trees[0] == trees[1]
    assert len(used.begin(request("a")).propose(tokens, likely)) < len(trees[0])


def test_the_newest_outputs_are_kept_and_the_text_never_grows_beyond_its_bound() -> None:
    past = Past()
    for number in range(300):
        past.add((str(number), 0), list(range(1000 * number, 1000 * number + 200)))
        assert len(past.text) <= MOST_TOKENS
    assert past.text[-2] == 299_199
    assert len(past.text) > MOST_TOKENS - 201
    past.add(("long", 0), list(range(50_000)))
    assert (len(past.text), past.text[-2], past.text[-1]) == (MOST_TOKENS, 49_999, -1)
    past.add(("empty", 0), [])
    past.add(("short", 0), [1])
    assert past.text[-2:].tolist() == [1, -1]


@given(
    steps=st.lists(st.tuples(st.integers(0, 5), st.sampled_from((0, 1, 3, 4_000, 20_000)), st.booleans()), max_size=30)
)
def test_the_text_of_past_outputs_is_that_of_each_in_its_order(steps: list[tuple[int, int, bool]]) -> None:
    past, kept = Past(), dict[int, list[int]]()
    for number, (key, size, forgotten) in enumerate(steps):
        before, had = past.text, past.text.tolist()
        if forgotten:
            kept.pop(key, None)
            past.forget((str(key), 0))
        else:
            output = [number, *[1] * size]
            past.add((str(key), 0), output)
            past.add((str(key), 0), output)  # by another method
            kept.pop(key, None)
            kept[key] = [*output[1 - MOST_TOKENS :], -1]
        while sum(map(len, kept.values())) > MOST_TOKENS:
            del kept[next(iter(kept))]
        assert past.text.tolist() == [token for each in kept.values() for token in each]
        assert before.tolist() == had  # a reader of the text keeps what it reads


def test_so_many_tenants_are_kept_and_the_least_recently_used_one_is_forgotten() -> None:
    drafter = LookaheadDrafter()
    for number in range(MOST_PASTS):
        emitted(drafter, request(f"t{number}"), [1, 2, 3, 4])
    assert drafted(drafter, request("t0")) == {4}
    emitted(drafter, request("new"), [1, 2, 3, 4])
    assert len(drafter._pasts._pasts) == MOST_PASTS
    assert drafted(drafter, request("t0")) == {4}
    assert drafted(drafter, request("t1")) == set()


@pytest.mark.parametrize("running", [False, True], ids=["over", "with a request running"])
def test_what_is_forgotten_is_not_drafted_again(running: bool) -> None:
    drafter = LookaheadDrafter()
    for tenant in ("a", "b"):
        emitted(drafter, request(tenant, "1"), [1, 2, 3, 10])
        emitted(drafter, request(tenant, "2"), [1, 2, 3, 20])
    draft = drafter.begin(request("a"))

    def seen(tenant: str) -> set[int]:
        if running and tenant == "a":
            return set(draft.propose([7, 1, 2, 3], BOLD).tokens[1:])
        return drafted(drafter, request(tenant))

    assert seen("a") == {10, 20}
    drafter.forget("a", ("1", 1))
    drafter.forget("c", ("1", 0))
    assert seen("a") == {10, 20}
    drafter.forget("a", ("1", 0))
    assert seen("a") == {20}
    drafter.forget("a")
    assert seen("a") == set()
    draft.finish([5, 9, 1, 2, 3, 40])
    assert drafted(drafter, request("a")) == set()  # what was running when its tenant was forgotten is not kept either
    assert drafted(drafter, request("b")) == {10, 20}


def test_requests_end_and_are_forgotten_in_different_threads() -> None:
    drafter = LookaheadDrafter()
    kept, gone = ([request("a", f"{name} {number}") for number in range(300)] for name in ("kept", "gone"))
    for asked in gone:
        emitted(drafter, asked, [1])
    ending = Thread(target=lambda: [emitted(drafter, asked, [2]) for asked in kept])
    ending.start()
    for asked in gone:
        drafter.forget("a", asked.key)
    ending.join()
    assert drafter._pasts.of(request("a")).text.tolist() == [2, -1] * 300
