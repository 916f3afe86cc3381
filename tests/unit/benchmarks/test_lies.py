"""`python -m benchmarks.lies`: the weights that each engine serves and promises."""

from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.lies import ENGINES, parts
from services.generation.engine.text.tokenizer import Tokenizer

TOKENIZER = cast(Tokenizer, SimpleNamespace(encode=lambda _: list(range(300_000)), encode_chat=lambda _: [1, 2]))


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_promises_and_serves_its_own_weights_alone(name: str) -> None:
    engine = ENGINES[name]
    found, fine = list(parts(engine, TOKENIZER, 8, 8)), engine.promised[0]
    assert {part.promised for part in found} == {*engine.promised}
    assert {part.serves for part in found} == {
        *engine.promised, engine.coarse, f"{fine} with noise", f"{fine} with n-grams",
    }  # fmt: skip
    honest = [part for part in found if part.case.startswith("honest")]
    assert all(part.serves.removesuffix(" with n-grams") == part.promised for part in honest)
    assert engine.retold in {part.case for part in honest}
    assert len({part.path for part in found}) == len(found)
