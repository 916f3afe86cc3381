"""A record is verified along its own tokens, and the answer is the same as by decoding, bit for bit."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation import verification
from services.generation.engine.core import EngineSettings
from services.generation.engine.events import Outcome
from services.generation.engine.request import EngineRequest, InvalidRequest, SamplingParams
from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.errors import WeightsInvalid
from services.generation.target.probe import NumericsProfile, ProbeReport
from services.generation.verification import Record, Stopped, Verifier
from tests.fakes.drafters import LetterDecoder
from tests.fakes.engine_runs import run
from tests.fakes.tiny_head import make_tiny_adapter
from tests.fakes.tiny_model import make_tiny_model
from tests.unit.generation.engine.test_identity import battery, drafters_of, requests_of

PROVEN = NumericsProfile({}, "cidv1:sha256:" + "0" * 64, ProbeReport(1, (), ""))


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> CpuTarget:
    """The target that serves, with two adapters."""
    folder = tmp_path_factory.mktemp("adapters")
    adapters = {name: make_tiny_adapter(folder / name, model, seed=seed) for seed, name in enumerate("ab")}
    return load_target(model, cache_tokens=40 * 64, adapters=adapters)


@pytest.fixture(scope="module")
def auditor(server: CpuTarget, model: Path, tmp_path_factory: pytest.TempPathFactory) -> CpuTarget:
    """Another target with the same weights."""
    folder = tmp_path_factory.mktemp("again")
    adapters = {name: make_tiny_adapter(folder / name, model, seed=seed) for seed, name in enumerate("ab")}
    return load_target(model, cache_tokens=10 * 64, adapters=adapters, threads=1)


def verifier(target: CpuTarget, rows: int = 64) -> Verifier:
    return Verifier(target, LetterDecoder, PROVEN, rows)


def statement(outcome: Outcome) -> tuple[object, ...]:
    """All that a receipt commits to, and the margins."""
    return outcome.token_ids, outcome.stream_digest, outcome.finish_reason, outcome.stop_reason, outcome.margins


def served(target: CpuTarget, rng: random.Random, seed: int) -> list[tuple[Record, Outcome]]:
    """Random requests, served together, with speculation, in a random schedule."""
    adapters = [None, *(adapter.cid for adapter in target.adapters)]
    requests = [replace(each, adapter=rng.choice(adapters)) for each in requests_of(rng, rng.randrange(1, 4))]
    schedule = EngineSettings(max_sequences=rng.choice((1, 2, 8)), max_rows=rng.choice((8, 17, 64, 256)))
    collected = run(target, requests, drafters=drafters_of(target, seed, {}), settings=schedule)
    outcomes = [collected.outcomes[request.key] for request in requests]
    return [(Record(each, outcome.token_ids), outcome) for each, outcome in zip(requests, outcomes, strict=True)]


def test_a_tokenizer_that_is_replaced_while_weights_are_loaded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tiny_model(tmp_path)

    def loaded(directory: Path, **options: Any) -> CpuTarget:
        target = load_target(directory, **options)
        (directory / "tokenizer_config.json").touch()
        return target

    monkeypatch.setattr(verification, "load_target", loaded)
    with pytest.raises(WeightsInvalid, match="tokenizer_config"):
        Verifier.load(model)


@given(seed=st.integers(0, 2**32), rows=st.sampled_from((2, 7, 64, 256)))
@battery
def test_what_was_served_with_speculation_is_verified_by_prefill(
    server: CpuTarget, auditor: CpuTarget, seed: int, rows: int
) -> None:
    for record, outcome in served(server, random.Random(seed), seed):
        verified = verifier(auditor, rows).prefill(record)
        assert statement(verified) == statement(outcome)
        assert auditor.blocks.used == 0


@given(seed=st.integers(0, 2**32))
@battery
def test_one_token_changed_is_found_at_its_position(server: CpuTarget, auditor: CpuTarget, seed: int) -> None:
    rng = random.Random(seed)
    for record, _ in served(server, rng, seed):
        position = rng.randrange(len(record.output))
        other = (record.output[position] + rng.randrange(1, 384)) % 384
        forged = (*record.output[:position], other, *record.output[position + 1 :])
        verified = verifier(auditor, rng.choice((2, 7, 64))).prefill(replace(record, output=forged))
        assert verified.token_ids == record.output[: position + 1]
        assert verifier(auditor).decode(record.request).token_ids == record.output


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_record_cut_short_or_drawn_out_is_found_at_its_end(auditor: CpuTarget, temperature: float) -> None:
    request = EngineRequest("r", (5, 9, 300), SamplingParams(temperature, max_tokens=40, ignore_eos=True))
    output = verifier(auditor).decode(request).token_ids
    short = verifier(auditor).prefill(Record(request, output[:20]))
    assert (short.token_ids, short.finish_reason) == (output[:21], "cancelled")
    long = verifier(auditor).prefill(Record(request, (*output, 7, 8)))
    assert (long.token_ids, long.finish_reason) == (output, "length")
    strange = verifier(auditor).prefill(Record(request, (*output[:9], 2**32 - 1)))
    assert strange.token_ids == output[:10]


def test_a_record_is_verified_in_few_passes(auditor: CpuTarget) -> None:
    request = EngineRequest("r", tuple(range(100)), SamplingParams(max_tokens=128, ignore_eos=True))
    decoded = verifier(auditor).decode(request)
    verified = verifier(auditor, 128).prefill(Record(request, decoded.token_ids))
    assert statement(verified) == statement(decoded)
    assert (decoded.metrics.target_passes, verified.metrics.target_passes) == (128, 2)


def test_a_request_that_cannot_run_here_is_refused(auditor: CpuTarget) -> None:
    absent = EngineRequest("r", (1,), SamplingParams(), adapter="cidv1:sha256:" + "0" * 64)
    with pytest.raises(InvalidRequest, match="adapter"):
        verifier(auditor).prefill(Record(absent, (1,)))
    with pytest.raises(InvalidRequest, match="token_ids: is 384"):
        verifier(auditor).decode(EngineRequest("r", (384,), SamplingParams()))


def test_a_verification_that_is_asked_to_stop_stops_and_leaves_nothing_behind(auditor: CpuTarget) -> None:
    asked = Verifier(auditor, LetterDecoder, PROVEN, stopping=lambda: True)
    with pytest.raises(Stopped):
        asked.decode(EngineRequest("r", (1, 2), SamplingParams(max_tokens=50, ignore_eos=True)))
    assert auditor.blocks.used == 0
