"""Output on a terminal."""

from __future__ import annotations

import io
import json

import pytest
from rich.markup import escape

from services.cli.terminal.output import ShownConsole, answer, facts, short, table
from services.cli.terminal.steering import printable


def test_control_characters_of_a_model_do_not_reach_a_terminal() -> None:
    assert printable("a\x1b[31mb\tc\nd\x07é\x9b2J\r\u202e") == "a�[31mb\tc\nd�é�2J��"


@pytest.mark.parametrize("text", ["une\u00a0espace", "三\u3000四", "می\u200cخواهم", "👩\u200d💻"])
def test_text_of_any_language_reaches_a_terminal_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_what_a_caller_put_into_a_receipt_does_not_steer_the_terminal_of_who_reads_it() -> None:
    written = io.StringIO()
    rows = table("tenant")
    rows.add_row("[bold]" + escape("a\x1b]0;owned\x07b"))
    console = ShownConsole(file=written, force_terminal=True, highlight=False)
    console.print(rows)
    console.print("a\x1b[2Jb")
    assert "a]0;ownedb" in written.getvalue()
    assert "a[2Jb" in written.getvalue()
    assert "\x1b]" not in written.getvalue()
    assert "\x1b[2J" not in written.getvalue()
    assert "\x1b[1m" in written.getvalue()  # styles are still there


@pytest.mark.parametrize("width", [40, 60, 80])
def test_what_is_copied_stays_whole_on_a_narrow_terminal(width: int) -> None:
    written, receipt = io.StringIO(), "01a20793-755f-7df1-8ba9-5622946153b6"
    rows = table("entry", "receipt", "why", right=("entry",), whole=("receipt",))
    rows.add_row("12345", receipt, "a long sentence, which may be broken")
    ShownConsole(file=written, width=width).print(rows)
    assert receipt in written.getvalue()
    assert "12345" in written.getvalue()
    assert "sentence," in written.getvalue()


def test_an_identifier_is_shortened_for_a_column_and_stays_recognisable() -> None:
    assert short("cidv1:sha256:" + "ab" * 32) == "cidv1:abababababab…"
    assert short("plain") == "plain"


def test_an_answer_is_one_json_document_or_a_view_and_lines_stay_whole(capsys: pytest.CaptureFixture[str]) -> None:
    line = "a [bold] line of " + "many " * 40 + "words"
    answer(True, lambda: {"line": line}, lambda: line)
    answer(False, lambda: pytest.fail("nobody asked for JSON"), lambda: line)
    answer(False, lambda: None, lambda: facts(("name", "[bold]value[/]")))
    document, shown, *rows = capsys.readouterr().out.splitlines()
    assert (json.loads(document), shown) == ({"line": line}, line)
    assert "value" in "".join(rows)
    assert "bold" not in "".join(rows)
