"""The demo's prompts, those that its head learns from, and how it shows answers."""

from random import Random

import pytest

from demo.smollm2.prompts import Choice, is_held_out, words


@pytest.mark.slow
def test_no_subject_of_the_held_out_prompts_is_one_of_the_others() -> None:
    topics = words("knowledge")["topics"]
    drawn = {split: {Choice(Random(n), split).subject(topics) for n in range(2000)} for split in ("train", "held_out")}
    assert drawn["held_out"] == {topic for topic in topics if is_held_out(topic)}
    assert drawn["train"] == set(topics) - drawn["held_out"]
