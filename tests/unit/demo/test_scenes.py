"""The demo's prompts, those that its head learns from, and how it shows answers."""

from __future__ import annotations

import io
from random import Random

import pytest
from rich.console import Console

from demo.main_job.measurement import KINDS, read_prompts
from demo.main_job.scenes import Stream
from demo.smollm2.prompts import DOMAINS, Choice, is_held_out, prompts, words


def test_there_are_prompts_of_every_kind() -> None:
    for kind in KINDS:
        prompts = read_prompts(kind, 4)
        assert len({prompt.ending for prompt in prompts}) == 4
        assert all(prompt.messages[-1].role == "user" for prompt in prompts)


@pytest.mark.slow
@pytest.mark.parametrize("domain", DOMAINS)
def test_a_domain_gives_the_same_different_prompts_every_time(domain: str) -> None:
    made = list(prompts("train", domain, 30))
    assert made == list(prompts("train", domain, 30))
    assert len({str(line.get("messages", line.get("prompt"))) for line in made}) == 30
    assert all(("messages" in line) != ("prompt" in line) for line in made)


@pytest.mark.slow
def test_no_subject_of_the_held_out_prompts_is_one_of_the_others() -> None:
    topics = words("knowledge")["topics"]
    drawn = {split: {Choice(Random(n), split).subject(topics) for n in range(2000)} for split in ("train", "held_out")}
    assert drawn["held_out"] == {topic for topic in topics if is_held_out(topic)}
    assert drawn["train"] == set(topics) - drawn["held_out"]


def test_every_slot_is_filled() -> None:
    made = [str(line) for domain in ("code", "knowledge", "text", "maths") for line in prompts("train", domain, 60)]
    assert not [text for text in made if "{topic}" in text or "{text}" in text or "{code}" in text or "{name}" in text]


@pytest.mark.parametrize(
    ("terminal", "text"), [(True, "When sunlight\nreaches us\n"), (False, "When sunlight reaches us\n")]
)
def test_answers_break_between_words_on_a_terminal_alone(terminal: bool, text: str) -> None:
    written = io.StringIO()
    stream = Stream(Console(file=written, force_terminal=terminal, color_system=None, width=16, _environ={}))
    for piece in ("When sun", "light rea", "ches us"):
        stream.write(piece)
    stream.close()
    assert "\n".join(line.rstrip() for line in written.getvalue().split("\n")) == text
