"""Documents as JSON and as views on a terminal."""

from __future__ import annotations

import io
import json

import pytest

from services.cli.frame.output import answer
from services.cli.frame.process import printable
from services.cli.frame.rendering import ShownConsole, print_view
from services.cli.frame.views import Column, Styled, facts, short, table


def test_control_characters_of_a_model_do_not_reach_a_terminal() -> None:
    assert printable("a\x1b[31mb\tc\nd\x07é\x9b2J\r\u202e") == "a�[31mb\tc\nd�é�2J��"


@pytest.mark.parametrize("text", ["une\u00a0espace", "三\u3000四", "می\u200cخواهم", "👩\u200d💻"])
def test_text_of_any_language_reaches_a_terminal_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_what_a_caller_put_into_a_receipt_does_not_steer_the_terminal_of_who_reads_it() -> None:
    written = io.StringIO()
    console = ShownConsole(file=written, force_terminal=True, highlight=False)
    print_view(
        table([{"tenant": "a\x1b]0;owned\x07b"}], Column("tenant", lambda row: Styled(row["tenant"], "bold"))), console
    )
    console.print("a\x1b[2Jb")
    assert "a]0;ownedb" in written.getvalue()
    assert "a[2Jb" in written.getvalue()
    assert "\x1b]" not in written.getvalue()
    assert "\x1b[2J" not in written.getvalue()
    assert "\x1b[1m" in written.getvalue()  # styles are still there


@pytest.mark.parametrize("width", [40, 60, 80])
def test_what_is_copied_stays_whole_on_a_narrow_terminal(width: int) -> None:
    written, receipt = io.StringIO(), "01a20793-755f-7df1-8ba9-5622946153b6"
    rows = table(
        [{"entry": 12345, "receipt": {"id": receipt}, "why": "a long sentence, which may be broken"}],
        Column("entry", "entry", right=True),
        Column("receipt", "receipt.id", whole=True),
        Column("why", "why"),
    )
    print_view(rows, ShownConsole(file=written, width=width))
    assert receipt in written.getvalue()
    assert "12345" in written.getvalue()
    assert "sentence," in written.getvalue()


def test_an_identifier_is_shortened_for_a_column_and_stays_recognisable() -> None:
    assert short("cidv1:sha256:" + "ab" * 32) == "cidv1:abababababab…"
    assert short("plain") == "plain"


def test_an_answer_is_one_document_as_json_or_a_view_of_it_and_lines_stay_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = {"line": "a [bold] line of " + "many " * 40 + "words"}
    answer(True, document, lambda _: pytest.fail("nobody asked for a view"))
    answer(False, document, lambda shown: shown["line"])
    answer(False, document, lambda shown: facts(("name", "[bold]value"), None))
    as_json, line, *rows = capsys.readouterr().out.splitlines()
    assert (json.loads(as_json), line) == (document, document["line"])
    assert "[bold]value" in "".join(rows)


def test_a_value_that_is_missing_is_a_dash_and_a_table_without_rows_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    column = Column("outcome", "verdict.outcome")
    answer(False, [{"verdict": None}, {"verdict": {"outcome": "EXACT"}}], lambda rows: table(rows, column))
    assert [line.strip() for line in capsys.readouterr().out.splitlines()[-2:]] == ["–", "EXACT"]
    answer(False, [], lambda rows: table(rows, column, empty="no verdicts"))
    assert capsys.readouterr().out == "no verdicts\n"
