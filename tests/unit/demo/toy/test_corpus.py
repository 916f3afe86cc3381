"""The corpus builders: seeded, split, and true to what they promise about calls and quotations."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from demo.toy.corpus import chat, code, mixture, passages, tools
from demo.toy.corpus.dialogue import render
from demo.toy.measures import call_faults, offered_tools, quotations

GENERATED = ("tools", "passages", "chat")
COUNT = 300


@pytest.mark.parametrize("domain", GENERATED)
def test_a_split_is_the_same_every_time_and_a_shorter_one_is_its_beginning(domain: str) -> None:
    long = list(mixture.texts(domain, "train", COUNT))
    assert list(mixture.texts(domain, "train", 50)) == long[:50]


@pytest.mark.parametrize("domain", GENERATED)
def test_no_held_out_dialogue_is_in_the_training_split(domain: str) -> None:
    assert not set(mixture.texts(domain, "train", COUNT)) & set(mixture.texts(domain, "held_out", COUNT))


@pytest.mark.parametrize("domain", GENERATED)
def test_dialogues_hardly_ever_repeat(domain: str) -> None:
    assert len(set(mixture.texts(domain, "train", COUNT))) == COUNT


@pytest.mark.slow
def test_code_files_are_in_exactly_one_split_and_in_order() -> None:
    train, held_out = code.files("train"), code.files("held_out")
    assert not set(train) & set(held_out)
    assert train == sorted(train)
    assert len(held_out) >= 10


def test_every_call_follows_the_schema_of_an_offered_tool() -> None:
    for dialogue in tools.documents("held_out", COUNT):
        offered = offered_tools(dialogue[0].content)
        calls = [m.content for m in dialogue if m.role == "assistant" and m.content.startswith("{")]
        assert calls
        assert [fault for call in calls for fault in call_faults(call, offered)] == []


def test_every_string_argument_of_a_call_is_in_the_request_before_it() -> None:
    for dialogue in tools.documents("train", COUNT):
        for request, call in pairwise(dialogue):
            if request.role == "user":
                values = json.loads(call.content)["arguments"].values()
                assert all(value in request.content for value in values if isinstance(value, str))


def test_every_answer_quotes_the_passage_word_for_word() -> None:
    for dialogue in passages.documents("train", COUNT):
        passage = dialogue[0].content
        for answer in (m.content for m in dialogue if m.role == "assistant"):
            assert quotations(answer)
            assert all(quote in passage for quote in quotations(answer))


def test_held_out_reference_pages_are_not_quoted_in_training() -> None:
    train = {s for page in passages.reference_sentences("train") for s in page}
    held_out = [s for page in passages.reference_sentences("held_out") for s in page]
    assert held_out
    assert not train.intersection(held_out)


def test_chats_take_turns_and_end_with_the_agent() -> None:
    for dialogue in chat.documents("train", COUNT):
        roles = [m.role for m in dialogue]
        assert roles == ["system", *["user", "assistant"] * (len(roles) // 2)]


@pytest.mark.parametrize("domain", GENERATED)
def test_no_slot_is_left_unfilled(domain: str) -> None:
    builders = {"tools": tools.documents, "passages": passages.documents, "chat": chat.documents}
    for dialogue in builders[domain]("train", COUNT):
        for message in dialogue:
            assert "{}" not in message.content
            assert message.content.strip()
        assert render(dialogue).count("<|end|>") == len(dialogue)
