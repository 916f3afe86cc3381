"""What reaches a terminal."""

from __future__ import annotations

from services.cli.output import printable, short


def test_control_characters_of_a_model_do_not_reach_a_terminal() -> None:
    assert printable("a\x1b[31mb\tc\nd\x07é") == "a�[31mb\tc\nd�é"


def test_an_identifier_is_shortened_for_a_column_and_stays_recognisable() -> None:
    assert short("cidv1:sha256:" + "ab" * 32) == "cidv1:abababababab…"
    assert short("plain") == "plain"
