"""The target's answers are its own, streams and all, whatever interrupts the asking."""

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.text.tokenizer import Tokenizer
from services.training.answering import questions, regenerate
from services.training.plan import OutputInvalid
from services.training.prompts import Prompt, PromptsInvalid, read_prompts
from services.training.recordings import ANSWERS, RECORDINGS, Archive, Prefill, Stored
from tests.fakes.engine_runs import run
from tests.fakes.tiny_head import edit_json
from tests.fakes.tiny_model import PAD, make_tiny_model
from tests.unit.training.material import LONGEST_ANSWER, PROMPTS, Material


def test_answers_are_what_the_engine_says_with_speculation_off(material: Material) -> None:
    requests = [
        EngineRequest(
            question.id,
            question.prompt.tokens,
            SamplingParams(temperature=question.temperature, seed=question.seed, max_tokens=LONGEST_ANSWER),
        )
        for question in questions(PROMPTS, (0.0, 1.0), seed=3)
    ]
    plain = run(material.target, requests).outcomes
    assert {a.id: a.output for a in material.answers} == {name: o.token_ids for (name, _), o in plain.items()}
    assert {a.temperature for a in material.answers} == {0.0, 1.0}


def test_streams_taken_down_while_answering_equal_those_of_a_prefill_bit_for_bit(material: Material) -> None:
    asked = questions(PROMPTS, (0.0, 1.0), seed=3)
    for answer, recording in regenerate(material.target, asked, LONGEST_ANSWER, material.streams):
        (again,) = Prefilled(material).of(answer.id)
        assert recording.features.shape == (len(answer.tokens) - 1, material.streams.width)
        assert recording.finals.shape == (len(answer.output), material.streams.hidden_size)
        np.testing.assert_array_equal(recording.features, again.features)
        np.testing.assert_array_equal(recording.finals, again.finals)


def test_streams_of_a_beginning_that_prompts_share_are_those_of_a_prefill_too(material: Material) -> None:
    begin = tuple(range(40))
    prompts = [Prompt(f"s{number}", "a", (*begin, 40 + number, 50)) for number in range(70)]
    for answer, recording in regenerate(material.target, questions(prompts, (0.0,), seed=3), 4, material.streams):
        (again,) = Prefill(material.target, material.streams, [answer]).of([0])
        np.testing.assert_array_equal(recording.features, again.features)
        np.testing.assert_array_equal(recording.finals, again.finals)


class Prefilled:
    def __init__(self, material: Material) -> None:
        self._numbers = {answer.id: number for number, answer in enumerate(material.answers)}
        self._recordings = material.recordings

    def of(self, name: str):  # type: ignore[no-untyped-def]
        return self._recordings.of([self._numbers[name]])


@pytest.mark.parametrize("line", [{"prompt": ""}, {"messages": []}, {}, {"prompt": "a", "messages": []}])
def test_an_empty_prompt_is_refused_though_the_tokenizer_begins_every_text(
    line: dict[str, object], tmp_path: Path
) -> None:
    begin = {"SpecialToken": {"id": PAD, "type_id": 0}}
    first = {
        "type": "TemplateProcessing",
        "pair": [],
        "special_tokens": {PAD: {"id": PAD, "ids": [0], "tokens": [PAD]}},
    }
    model = make_tiny_model(tmp_path / "model")
    edit_json(
        model / "tokenizer.json", post_processor=first | {"single": [begin, {"Sequence": {"id": "A", "type_id": 0}}]}
    )
    tokenizer, file = Tokenizer(model), tmp_path / "prompts.jsonl"
    assert tokenizer.encode("") == [0]
    file.write_text('{"prompt": "a"}\n' + json.dumps(line))
    with pytest.raises(PromptsInvalid, match="line 2"):
        read_prompts([file], tokenizer, 100)


@pytest.mark.parametrize("torn", ["nothing", "a line", "a recording", "a whole recording without its line"])
def test_an_archive_that_a_crash_cut_short_goes_on_and_ends_the_same(
    torn: str, material: Material, tmp_path: Path
) -> None:
    asked, streams = questions(PROMPTS, (0.0, 1.0), seed=3), material.streams
    archive = Archive(tmp_path, streams, record=True)
    for answer, recording in islice(regenerate(material.target, asked, LONGEST_ANSWER, streams), 10):
        archive.append(answer, recording)
    _tear(torn, tmp_path)
    again = Archive(tmp_path, streams, record=True)
    left = [question for question in asked if question.id not in again.ids]
    assert len(left) == (len(asked) - 9 if torn == "a line" else len(asked) - 10)
    for answer, recording in regenerate(material.target, left, LONGEST_ANSWER, streams):
        again.append(answer, recording)

    stored = Stored(tmp_path, streams)
    assert stored.answers == material.answers
    numbers = range(len(stored.answers))
    for kept, computed in zip(stored.of(numbers), material.recordings.of(numbers), strict=True):
        np.testing.assert_array_equal(kept.features, computed.features)
        np.testing.assert_array_equal(kept.finals, computed.finals)


@pytest.mark.parametrize("size", [0, 5])
def test_an_archive_that_lacks_recordings_is_refused_except_to_recompute(
    size: int, material: Material, tmp_path: Path
) -> None:
    answers = material.answers
    for number, answer in enumerate(answers):
        (recording,) = material.recordings.of([number])
        Archive(tmp_path, material.streams, record=number < size).append(answer, recording)
    with pytest.raises(OutputInvalid, match=RECORDINGS):
        Archive(tmp_path, material.streams, record=True)
    assert Archive(tmp_path, material.streams, record=False).ids == {answer.id for answer in answers}


def _tear(torn: str, folder: Path) -> None:
    lines, recordings = folder / ANSWERS, folder / RECORDINGS
    if torn == "a line":
        lines.write_bytes(lines.read_bytes()[:-7])
    if torn == "a recording":
        recordings.write_bytes(recordings.read_bytes() + b"\1" * 333)
    if torn == "a whole recording without its line":
        recordings.write_bytes(recordings.read_bytes() + b"\1" * 100_000)
