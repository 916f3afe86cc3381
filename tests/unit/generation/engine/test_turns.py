"""Whose turn it is to draft, by gains that were recorded."""

import pytest

from services.generation.drafting.methods import METHODS
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.turns import Gains

OFF, LOOKAHEAD, DRAFT = 7.0, (1.90, 12.0), (2.22, 15.0)
"""Tokens a second without drafts; tokens a pass and tokens a second by each method: Qwen2.5-Coder-1.5B in Q4_K_M with
SmolLM2-135M as its draft model, one request on two busy cores.
"""


def gain(tokens: float, speed: float) -> float:
    """A pass's gain in tokens: the tokens that it emits, less its time in tokens without drafts."""
    return tokens - tokens / speed * OFF


def drafted(gains: dict[str, float], once: float, requests: int = 12, passes: int = 90) -> dict[str | None, int]:
    """How many passes of the last request each method has; of a draft model the first draft of a request takes `once`,
    in tokens, for reading the prompt.
    """
    known = Gains()
    order = [spec.name for spec in METHODS if spec.name in gains]
    taken: dict[str | None, int] = {}
    for number in range(requests):
        turns = known.begin(EngineRequest(f"r{number}", (1, 2), SamplingParams(), method="auto"), order)
        taken, begun = {}, set[str]()
        for _ in range(passes):
            method = turns.under(1)
            taken[method] = taken.get(method, 0) + 1
            first = once if method == "draft" and method not in begun else 0.0
            begun |= {method} if method else set()
            turns.passed(gains.get(method or "", 0.0), first)
    return taken


def test_a_draft_model_that_was_named_drafts_first_and_goes_on_where_it_pays() -> None:
    first = Gains().begin(EngineRequest("first", (1, 2), SamplingParams(), method="auto"), _order())
    assert first.method == "draft"
    for requests in (1, 12):
        gains = {"lookahead": gain(*LOOKAHEAD), "draft": gain(*DRAFT), "suffix": 0.1}
        taken = drafted(gains, once=2.0, requests=requests)
        assert taken["draft"] > 0.7 * sum(taken.values())


@pytest.mark.parametrize(("pays", "once"), [(-0.4, 2.0), (0.3, 2.0), (gain(*LOOKAHEAD) + 0.05, 100.0)])
def test_one_that_pays_less_than_copies_leaves_the_turn_to_them(pays: float, once: float) -> None:
    taken = drafted({"lookahead": gain(*LOOKAHEAD), "draft": pays, "suffix": 0.1}, once=once)
    assert taken["lookahead"] > 0.7 * sum(taken.values())


def _order() -> list[str]:
    """The methods of a server that was given a draft model, and nothing else."""
    return [spec.name for spec in METHODS if spec.name in ("lookahead", "draft", "suffix")]
