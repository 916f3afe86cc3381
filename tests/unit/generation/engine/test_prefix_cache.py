"""Another sequence may have computed a sequence's prefix; its tokens are the same as alone."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.target.blocks import BLOCK
from services.generation.target.cpu import CpuTarget
from tests.fakes.drafters import LetterDecoder
from tests.fakes.engine_runs import CHEAP_ROWS, Collected
from tests.fakes.heads import eagle3, mtp
from tests.unit.generation.engine.test_identity import alone, check_unchanged, drafters_of, requests_of, short_battery

PLAIN = SamplingParams(max_tokens=6, ignore_eos=True)
LONGEST = 4 * BLOCK - 48  # of a prompt, so that it fits into the cramped target with its answer
PROMPT = tuple((7 * i * i + 3 * i) % 384 for i in range(2 * BLOCK + 20))


def alike(rng: random.Random) -> list[EngineRequest]:
    """Requests whose prompts begin alike."""
    trunk = [rng.randrange(384) for _ in range(3 * BLOCK)]
    found = []
    for request in requests_of(rng, rng.randrange(2, 8)):
        shared = trunk[: rng.choice((BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 9, 3 * BLOCK))]
        prompt = (*shared, *request.prompt[: rng.choice((0, 1, 40))])[:LONGEST]
        found.append(replace(request, prompt=prompt, tenant=rng.choice(("a", "a", "b")), reuse=rng.random() < 0.9))
    return found


def check(target: CpuTarget, reference: CpuTarget, seed: int) -> int:
    """Returns how many prompt tokens were not computed again."""
    rng = random.Random(seed)
    requests = alike(rng)
    expected = {request.key: alone(reference, request) for request in requests}
    drafters = drafters_of(target, seed, {key: tokens for key, (tokens, *_) in expected.items()})
    collected = check_unchanged(target, requests, expected, drafters, rng, rng.choice((1, 60)))
    return sum(outcome.metrics.cached_prompt_tokens for outcome in collected.outcomes.values())


@given(seed=st.integers(0, 2**32))
@short_battery
def test_a_prefix_computed_by_another_changes_no_token(target: CpuTarget, seed: int) -> None:
    check(target, target, seed)


@given(seed=st.integers(0, 2**32))
@short_battery
def test_nor_where_blocks_are_short(cramped_target: CpuTarget, target: CpuTarget, seed: int) -> None:
    check(cramped_target, target, seed)


class Server:
    """A core that goes on from request to request."""

    def __init__(self, target: CpuTarget, **choices: float) -> None:
        heads = {"eagle3": eagle3(target), "mtp": mtp(target)}
        self.drafters = {**heads, "lookahead": LookaheadDrafter()}
        self.target, self.collected, self.count = target, Collected(), 0
        known = EngineSettings(**choices)  # type: ignore[arg-type]
        self.core = EngineCore(target, self.drafters, LetterDecoder, CHEAP_ROWS, known, lambda: 0.0)

    def ask(self, prompt: tuple[int, ...], **members: object) -> tuple[int, ...]:
        """Its tokens; `reused` of it came from others."""
        self.count += 1
        request = EngineRequest(f"r{self.count}", prompt, PLAIN, **members)  # type: ignore[arg-type]
        self.core.add(request, self.collected.sink)
        while not self.core.idle:
            self.core.step()
        outcome = self.collected.outcomes[request.key]
        self.reused = outcome.metrics.cached_prompt_tokens
        return outcome.token_ids


def test_blocks_and_pieces_of_them_are_reused_and_one_token_at_least_is_computed(target: CpuTarget) -> None:
    server = Server(target)
    first = server.ask(PROMPT)
    assert server.reused == 0
    assert server.ask(PROMPT) == first
    assert server.reused == 2 * BLOCK
    for length in (2 * BLOCK + 1, 2 * BLOCK, BLOCK, BLOCK // 2):
        assert server.ask(PROMPT[:length]) == Server(target, prefix_caching=False).ask(PROMPT[:length])
        assert server.reused == length - 1


def test_an_answer_is_reused_by_the_turn_that_follows_it(target: CpuTarget) -> None:
    server = Server(target)
    prompt = PROMPT[: 2 * BLOCK - 3]
    answer = server.ask(prompt)
    server.ask((*prompt, *answer, 5, 6, 7))
    assert server.reused == 2 * BLOCK


def test_tenants_and_requests_without_reuse_share_nothing(target: CpuTarget) -> None:
    server = Server(target)
    server.ask(PROMPT, tenant="a", reuse=False)
    server.ask(PROMPT, tenant="a")
    assert server.reused == 0
    server.ask(PROMPT, tenant="b")
    assert server.reused == 0
    server.ask(PROMPT, tenant="a", reuse=False)
    assert server.reused == 0
    server.ask(PROMPT, tenant="a")
    assert server.reused == 2 * BLOCK


def test_it_can_be_left_out(target: CpuTarget) -> None:
    server = Server(target, prefix_caching=False)
    for _ in range(2):
        server.ask(PROMPT)
        assert server.reused == 0


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
def test_a_head_takes_over_blocks_that_off_or_another_method_has_computed(target: CpuTarget, method: str) -> None:
    server = Server(target)
    tokens = server.ask(PROMPT)
    for asked in (method, "lookahead", "off"):
        assert server.ask(PROMPT, method=asked) == tokens
        assert server.reused == 2 * BLOCK


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
def test_a_head_computes_blocks_without_features_and_other_methods_do_not(target: CpuTarget, method: str) -> None:
    server = Server(target, feature_bytes=0)
    tokens = server.ask(PROMPT)
    for asked, reused in ((method, 0), ("lookahead", 2 * BLOCK), ("off", 2 * BLOCK)):
        assert server.ask(PROMPT, method=asked) == tokens
        assert server.reused == reused


def test_a_replay_shows_what_is_wrong_with_a_cached_prefix(target: CpuTarget) -> None:
    server = Server(target)
    right = server.ask(PROMPT)
    values = target._parts.cache.groups[0].values
    before = values.copy()
    try:
        values[0] += np.float32(1.0)
        assert server.ask(PROMPT) != right
        assert server.ask(PROMPT, reuse=False) == right
    finally:
        values[:] = before


@pytest.mark.parametrize("blocks", [1, 2])
def test_what_was_given_up_is_computed_again(cramped_target: CpuTarget, blocks: int) -> None:
    server = Server(cramped_target)
    first = server.ask(PROMPT)
    for number in range(20):
        server.ask(tuple((number + 2 + i) % 384 for i in range(blocks * BLOCK)))
    assert server.ask(PROMPT) == first
    assert server.core.load().blocks_used == 0
