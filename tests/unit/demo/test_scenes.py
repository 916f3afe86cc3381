"""The demo: its prompts, its scenes, and what it says when one of them fails."""

from __future__ import annotations

import io
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from demo.main_job.measurement import KINDS, read_prompts
from demo.main_job.scenes import Stage, Stream
from demo.main_job.script import Demo
from demo.smollm2.prompts import DOMAINS, Choice, is_held_out, prompts, words


def shown(*, terminal: bool, long: bool) -> str:
    written = io.StringIO()
    stage = Stage(Console(file=written, force_terminal=terminal, width=80, _environ={}))
    with stage.waiting("compiling kernels", long=long):
        pass
    stage.remark("done")
    return written.getvalue()


def test_the_rest_of_a_long_answer_is_three_dots() -> None:
    written = io.StringIO()
    stream = Stream(Console(file=written, width=80, _environ={}))
    for number in range(12):
        stream.write(f"line {number}\n")
    stream.close()
    assert written.getvalue().endswith("line 7 …\n")


def test_a_terminal_shows_what_is_under_way_and_since_when() -> None:
    assert "compiling kernels" in shown(terminal=True, long=False)
    assert "0:00:00" in shown(terminal=True, long=False)


def test_elsewhere_a_line_says_what_takes_long_and_nothing_else_is_said() -> None:
    assert shown(terminal=False, long=True) == "compiling kernels …\ndone\n"
    assert shown(terminal=False, long=False) == "done\n"


@pytest.mark.parametrize(("compiled", "words"), [(True, "loading the model"), (False, "compiling kernels")])
def test_a_first_start_says_that_it_compiles(monkeypatch: pytest.MonkeyPatch, compiled: bool, words: str) -> None:
    monkeypatch.setattr("demo.main_job.script.kernels_are_compiled", lambda: compiled)
    written = io.StringIO()
    stage = Stage(Console(file=written, width=80))

    class Started(Exception):
        pass

    class Starting:
        def start(self, plan: str, timeout: float) -> str:
            if plan == "generation":
                raise Started
            return "127.0.0.1:1"

    class Plans:
        data_dir = Path("/data")

        def trust_own_keys(self) -> tuple[()]:
            return ()

        def ledger(self) -> str:
            return "ledger"

        def generation(self, ledger: str) -> str:
            return "generation"

    with pytest.raises(Started):
        Demo(Plans(), Starting(), stage, 1, 1).run()  # type: ignore[arg-type]
    assert words in written.getvalue()


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
