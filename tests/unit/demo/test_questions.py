"""The demo's prompts: of every kind enough, and none that the demo's head was trained on."""

from __future__ import annotations

from demo.main_job.prompts import KINDS, read_prompts


def test_there_are_prompts_of_every_kind() -> None:
    for kind in KINDS:
        prompts = read_prompts(kind, 4)
        assert len({prompt.ending for prompt in prompts}) == 4
        assert all(prompt.messages[-1].role == "user" for prompt in prompts)
