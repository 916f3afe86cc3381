"""An answer in a narrow terminal."""

from __future__ import annotations

import pytest

from demo.main_job.wrapped_text import WrappedText


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (("atmos", "pheric scat", "tering"), "atmospheric\nscattering\n"),
        (("one two three four",), "one two three\nfour\n"),
        (("a\n\nb  c",), "a\n\nb  c\n"),
        (("abcdefghijklmnopqrst u",), "abcdefghijklmnopqrst\nu\n"),
        (("三三三 三三三三",), "三三三\n三三三三\n"),
    ],
)
def test_lines_break_between_words_however_the_text_comes(pieces: tuple[str, ...], shown: str) -> None:
    written: list[str] = []
    write = WrappedText(written.append, lambda: 14)
    for piece in (*pieces, "\n"):
        write(piece)
    assert "\n".join(line.rstrip() for line in "".join(written).split("\n")) == shown


def test_a_full_line_is_followed_by_nothing_that_would_begin_the_next_one() -> None:
    written: list[str] = []
    write = WrappedText(written.append, lambda: 14)
    write("one two three. four\nfive sixteen..  \nend ")
    assert "".join(written) == "one two three.\nfour\nfive sixteen..\nend "
