"""The method table's warm-up: everybody that learns gets the same requests, none of them is measured afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import methods
from benchmarks.prompts import DOMAINS

Asked = list[tuple[tuple[int, ...], float]]


class Listening:
    def __init__(self, name: str) -> None:
        self.name, self.asked = name, Asked()

    def run(self, prompts: Sequence[Sequence[int]], temperature: float, max_tokens: int) -> None:
        self.asked += [(tuple(prompt), temperature) for prompt in prompts]


@pytest.mark.parametrize(("measured", "others"), [(64, 8), (140, 4)])
def test_no_request_of_the_warm_up_is_measured_and_all_methods_get_the_same(
    monkeypatch: pytest.MonkeyPatch, measured: int, others: int
) -> None:
    prompts = {domain: [[place, n] for n in range(144)] for place, domain in enumerate(DOMAINS)}
    monkeypatch.setattr(methods, "load_prompts", lambda domain, tokenizer, count: prompts[domain][:count])
    engine: Any = SimpleNamespace(tokenizer=None)
    names = ("transformers prompt lookup", "kolm off", "kolm rest", "kolm auto")
    contenders = [Listening(name) for name in names]
    assert methods._warm_up(contenders, engine, measured, 8) == 2 * len(DOMAINS) * others
    peer, off, rest, auto = (contender.asked for contender in contenders)
    assert len(set(auto)) == 2 * len(DOMAINS) * others
    assert rest == auto
    assert peer == off == auto[: 2 * len(DOMAINS)]  # compiled, they have nothing to learn
    assert not {prompt for prompt, _ in auto} & {tuple(p) for found in prompts.values() for p in found[:measured]}
