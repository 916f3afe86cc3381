"""Turns of sequences: fair among tenants by tokens, by priority within one; deadlines end what waits."""

from collections import Counter
from itertools import count

import numpy as np
import pytest

from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.request import EngineFull, EngineRequest, SamplingParams
from tests.fakes.drafters import LetterDecoder
from tests.fakes.engine_runs import CHEAP_ROWS, Collected
from tests.fakes.table_target import TableTarget


class Served:
    """An engine over a target without an end, and in which order its requests end."""

    def __init__(self, sequences: int = 1, waiting: int = 256, context: int = 4096) -> None:
        self.now = 0.0
        self.collected = Collected()
        self._numbers = count()
        target = TableTarget(np.zeros((8, 8), np.float32), context=context)
        settings = EngineSettings(max_sequences=sequences, max_waiting=waiting)
        self.core = EngineCore(target, {}, LetterDecoder, CHEAP_ROWS, settings, lambda: self.now)

    def ask(
        self, tenant: str, prompt: int = 1, tokens: int = 4, deadline: float = float("inf"), priority: int = 0
    ) -> str:
        name = f"{tenant} {next(self._numbers)}"
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
        asked = EngineRequest(name, (0,) * prompt, sampling, tenant=tenant, priority=priority, deadline=deadline)
        self.core.add(asked, self.collected.sink)
        return name

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.core.step()

    @property
    def ended(self) -> list[str]:
        return [name for name, _ in self.collected.outcomes]

    def tenants(self, first: int) -> str:
        """Tenants of the first that ended."""
        while len(self.ended) < first:
            self.core.step()
        return "".join(name.split()[0] for name in self.ended[:first])


def test_a_tenant_with_a_hundred_waiting_does_not_starve_another() -> None:
    served = Served()
    for _ in range(100):
        served.ask("a")
    served.steps(9)
    for _ in range(3):
        served.ask("b")
    before = len(served.ended)
    assert served.tenants(before + 7)[before:] == "abababa"


def test_tenants_share_by_tokens_and_not_by_requests() -> None:
    served = Served()
    for _ in range(10):
        served.ask("a", tokens=40)
    for _ in range(100):
        served.ask("b", tokens=4)
    shares = Counter(served.tenants(44))
    assert abs(40 * shares["a"] - 4 * shares["b"]) <= 44


def test_who_comes_back_has_not_saved_up() -> None:
    served = Served()
    served.ask("b")
    for _ in range(50):
        served.ask("a")
    served.steps(100)
    before = len(served.ended)
    for _ in range(50):
        served.ask("b")
    shares = Counter(served.tenants(before + 20)[before:])
    assert abs(shares["a"] - shares["b"]) <= 1


def test_lower_priorities_come_first_within_a_tenant_and_equals_by_arrival() -> None:
    served = Served()
    served.ask("a")
    served.steps(1)
    names = [served.ask("a", priority=priority) for priority in (5, 0, -3, 0)]
    served.tenants(5)
    assert served.ended[1:] == [names[2], names[1], names[3], names[0]]


def test_a_priority_gains_nothing_over_another_tenant() -> None:
    served = Served()
    for _ in range(4):
        served.ask("a")
        served.ask("b", priority=-1000)
    assert served.tenants(8) == "abababab"


def test_a_full_line_refuses_its_tenant_and_no_other() -> None:
    served = Served(waiting=2)
    served.ask("a")
    served.ask("a")
    with pytest.raises(EngineFull):
        served.ask("a")
    served.ask("b")
    assert Counter(served.tenants(3)) == {"a": 2, "b": 1}


def test_a_deadline_that_passes_in_the_queue_costs_no_pass() -> None:
    served = Served()
    running, late = served.ask("a", tokens=6), served.ask("a", deadline=1.0)
    served.steps(2)
    served.now = 1.5
    served.steps(1)
    assert served.ended == [late]
    outcome = served.collected.outcomes[late, 0]
    assert (outcome.finish_reason, outcome.token_ids, outcome.metrics.target_passes) == ("cancelled", (), 0)
    served.steps(3)
    assert served.ended == [late, running]


def test_a_deadline_frees_the_place_of_a_running_sequence_within_a_step() -> None:
    served = Served()
    served.ask("a", tokens=100, deadline=1.0)
    nxt = served.ask("a", tokens=1)
    served.steps(3)
    served.now = 1.5
    served.steps(1)
    assert served.ended[-1] == nxt
    assert served.core.load().blocks_used == 0


def test_a_cancelled_sequence_frees_its_place_within_a_step() -> None:
    served = Served()
    running, waiting, other = served.ask("a", tokens=100), served.ask("b"), served.ask("b", tokens=1)
    served.steps(2)
    served.core.cancel(running)
    served.core.cancel(waiting)
    served.steps(1)
    assert served.ended == [waiting, running, other]


def test_what_was_preempted_comes_back_before_those_who_wait() -> None:
    served = Served(sequences=8, context=128)  # 8 blocks of 64 tokens; each sequence will need two
    for _ in range(8):
        served.ask("a", prompt=40, tokens=80)
    served.steps(1)
    last = served.ask("b", prompt=40, tokens=80)
    served.tenants(9)
    assert served.core.load().preemptions
    assert served.ended[-1] == last


def test_names_of_tenants_that_left_are_dropped() -> None:
    served = Served()
    for number in range(6000):
        served.ask(f"t{number}", tokens=1)
        served.steps(1)
    assert len(served.core._waiting._counters) <= 4097
