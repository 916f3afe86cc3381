"""Flags as the words of a command."""

from __future__ import annotations

from pathlib import Path

from services.cli.jobs.running.command_words import words


def test_a_list_repeats_its_flag_and_what_is_off_says_nothing() -> None:
    given = words(draft_model=Path("small"), head=["a", "b"], insecure=True, no_beside=False, registry=None, port=0)
    assert given == ("--draft-model", "small", "--head", "a", "--head", "b", "--insecure", "--port", "0")
    assert words(head=[]) == ()
