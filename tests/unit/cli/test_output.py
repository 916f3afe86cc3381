"""Output for people and programs, and values of flags."""

import io
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ledger.audit.log_clock import DatedAhead
from ledger.audit.log_verification import Check, Report
from ledger.documents.halt import HaltState
from ledger.errors import FormatError
from ledger.keys.envelope import Envelope, Signature
from ledger.monitor.finding import DATED_AHEAD, Finding
from services.cli.frame import exits, output
from services.cli.frame.exits import UsageError
from services.cli.frame.output import answer
from services.cli.frame.process import printable
from services.cli.frame.rendering import ShownConsole, print_view
from services.cli.frame.values import age, moment, numbers
from services.cli.frame.views import Column, Styled, facts, table
from services.cli.ledger.log import report_document, report_view
from services.cli.ledger.receipts import envelope_document
from services.cli.monitor.monitor import Poll, PollReport
from tests.cli import CLOSED, kolm


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


def test_an_answer_is_one_document_as_json_or_a_view_of_it_and_lines_stay_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = {"line": "a [bold] line of " + "many " * 40 + "words"}
    answer(True, document, lambda _: pytest.fail("no view was asked for"))
    answer(False, document, lambda shown: shown["line"])
    answer(False, document, lambda shown: facts(("name", "[bold]value"), None))
    as_json, line, *rows = capsys.readouterr().out.splitlines()
    assert (json.loads(as_json), line) == (document, document["line"])
    assert "[bold]value" in "".join(rows)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (moment, "soon"),
        (moment, "0001-01-01T00:00:00+23:00"),
        (age, "24"),
        (age, "-1h"),
        (age, "100000d"),
        (lambda option, text: numbers(option, text, int), "1,x"),
        (lambda option, text: numbers(option, text, int), ""),
    ],
)
def test_wrong_words_are_refused_under_the_option_s_name(parse: Callable[[str, str], object], text: str) -> None:
    with pytest.raises(UsageError, match="--option: "):
        parse("--option", text)


ASKED = ("generation", "ledger", "auditor", "registry")
WRONG = [
    (("generate", "-f", "none.txt"), "-f"),
    (("generate", "-f", "latin1.txt"), "-f"),
    (("generate", "x", "--prediction", "none"), "--prediction"),
    (("generate", "x", "--json-schema", "none"), "--json-schema"),
    (("generate", "x", "--grammar", "."), "--grammar"),
    (("generate", "x", "--save", "none/x"), "--save"),
    (("generate", "x", "--save", "latin1.txt"), "--save"),
    (("generate", "x", "--promise", "none/x"), "--promise"),
    (("generate", "x", "--save", "new", "--promise", "./new"), "--promise"),
    (("generate", "x", "--token-file", "none"), "--token-file"),
    (("generate", "x", "--tls-ca", "none"), "--tls-ca"),
    (("generate", "x", "--tls-cert", "none"), "--tls-cert"),
    (("generate", "x", "--tls-key", "none"), "--tls-key"),
    (("generate", "x", "--max-tokens", "many"), "--max-tokens"),
    (("generate", "x", "--temperature", "hot"), "--temperature"),
    (("generate", "x", "--timeout", "0"), "--timeout"),
    (("generate", "x", "--timeout", "inf"), "--timeout"),
    (("generate", "x", "--timeout", "9" * 400), "--timeout"),
    (("receipts", "list", "--limit", "9" * 5000), "--limit"),
    (("generate", "x", "--parameter", "window"), "--parameter"),
    (("generate", "x", "--parameter", f"window={'1' * 5000}"), "--parameter"),
    (("status", "--ledger", f"127.0.0.1:{'1' * 5000}"), "--ledger"),
    (("monitor", "--since", "9" * 20), "--since"),
    (("init", "a\udcff"), "FOLDER"),
    (("heads", "train", "a.gguf", "--prompts", "a.gguf", "--out", "new", "--seed", "-1"), "--seed"),
    (("chat", "--save", "none/x.tar"), "--save"),
    (("receipts", "list", "--since", "yesterday"), "--since"),
    (("receipts", "list", "--first", "-1"), "--first"),
    (("receipts", "list", "--tenant", "caf\udce9"), "--tenant"),
    (("receipts", "export", "2", "none/x"), "PATH"),
    (("receipts", "export", "2", "latin1.txt"), "PATH"),
    (("receipts", "promised", "a.gguf", "--answer", "none/x"), "--answer"),
    (("receipts", "promised", "a.gguf", "--answer", "latin1.txt"), "--answer"),
    (("ledger", "export", "none/x.tar"), "PATH"),
    (("ledger", "export", "x.tar", "--end", "9" * 20), "--end"),
    (("ledger", "export", "x.tar", "--start", "9" * 20), "--start"),
    (("heads", "push", "none", "--name", "a", "--model", "a.gguf"), "FOLDER"),
    (("models", "list", "none"), "NAME"),
    (("retention", "--days", "0"), "--days"),
    (("tokens", "create", "a", "--role", "king"), "--role"),
    (("tokens", "create", "a", "--role", "read", "--tenant", "red\x1b[31m"), "--tenant"),
    (("tokens", "create", "a", "--role", "read", "--tenant", "a\nb"), "--tenant"),
    (("tokens", "create", "a", "--role", "read", "--tenant", ""), "--tenant"),
    (("retention", "--days", "1", "--tenant", "\u202eevil"), "--tenant"),
    (("trust", "add", "a.gguf", "--role", "receipts", "--tenant", "a\x07"), "--tenant"),
    (("heads", "push", "none", "--name", "a", "--publisher", "a\x9b2J"), "--publisher"),
    (("heads", "push", "none", "--name", "a", "--annotate", "a\tb=c"), "--annotate"),
    (("up", "--model", "a.gguf", "--adapter", "a\x1b=adapter"), "--adapter"),
    (("heads", "train", "a.gguf", "--prompts", "a.gguf", "--out", "new", "--minutes", "nan"), "--minutes"),
    (("doctor", "--model", "none"), "--model"),
    (("doctor", "--threads", "0"), "--threads"),
    (("audit", "run", "--model", "none"), "--model"),
    (("up", "--config", "none.toml"), "--config"),
    (("up", "--model", "a.gguf", "--head", "./none"), "--head"),
    (("up", "--model", "a.gguf", "--head", "hf:owner/head"), "--model"),
    (("heads", "pull", "hf:owner/head"), "--model"),
    (("up", "--model", "a.gguf", "--ledger-port", "x"), "--ledger-port"),
    (("up", "--model", "a.gguf", "--shared-datastore", "none"), "--shared-datastore"),
    (("up", "--model", "a.gguf", "--adapter", "none"), "--adapter"),
    (("up", "--model", "a.gguf", "--adapter", "a=adapter", "--adapter", "a=adapter"), "--adapter"),
    *((("status", f"--{name}", wrong), f"--{name}") for name in ASKED for wrong in ("nowhere", "host:port")),
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9")
    (tmp_path / "a.gguf").touch()
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    for name in [name for name in os.environ if name.startswith("KOLM_")]:
        monkeypatch.delenv(name)
    for name in ASKED:
        monkeypatch.setenv(f"KOLM_{name.upper()}", CLOSED)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("words", "option"), WRONG, ids=[" ".join(words)[:80] for words, _ in WRONG])
def test_a_wrong_value_is_named_with_its_option(words: tuple[str, ...], option: str) -> None:
    done = kolm(*words)
    assert (done.code, done.err.startswith(f"kolm: {option}: ")) == (exits.USAGE, True), done.err
    assert sorted(path.name for path in Path().iterdir()) == ["a.gguf", "adapter", "latin1.txt"], (
        "nothing is left behind"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("init", "."),
        ("ledger", "export", "."),
        ("chat", "--save", "."),
        ("heads", "train", "../a.gguf", "--prompts", "../a.gguf", "--steps", "1", "--out", "."),
    ],
    ids=" ".join,
)
def test_the_folder_of_the_process_is_not_replaced(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    done = kolm(*words)
    assert done.code == exits.USAGE, done.err


def test_a_view_can_be_drawn_of_a_document_that_no_command_has_answered() -> None:
    """As the demo does: checks of a report are objects, and rows of its view are members of them."""
    check = Check(1, "The log is whole", True, "2 entries")
    ended = (DatedAhead(), ())
    report = Report((check,), None, None, 2, bytes(32), bytes(32), HaltState(), {"receipt": 2}, (), *ended)
    document = report_document(report)
    assert document["checks"] == [{"number": 1, "title": check.title, "passed": True, "detail": check.detail}]
    print_view(report_view(document), ShownConsole(file=io.StringIO()))


@pytest.mark.parametrize("as_json", [True, False])
def test_a_monitor_without_a_webhook_shows_a_warning_once(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    report = PollReport("log", as_json=as_json, once=False, goes_on=False)
    warnings = tuple(Finding(DATED_AHEAD, key, "an entry is dated ahead") for key in "ab")
    shown = []
    for count in (1, 1, 2, 2, 1, 2):
        report.show(Poll(3, warnings[:count], warnings[:count], None, None))
        out, err = capsys.readouterr()
        shown.append(bool(out if as_json else err))
    assert shown == [True, False, True, False, False, as_json]  # a line for each finding, a document for all of them


def test_what_a_model_s_loading_logs_is_a_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "_STEP_SECONDS", 0.0)
    logger = logging.getLogger("services.generation.target.progress")
    with output.steps("loading") as step:
        logger.info("packing")
        logger.warning("cannot keep")
        step("replaying")
    logger.info("nothing")
    assert capsys.readouterr().err.splitlines() == ["packing …", "cannot keep", "replaying …"]
    with output.steps("loading", quiet=True) as step:
        step("replaying")
    assert capsys.readouterr().err == ""


def test_a_document_that_is_no_json_is_an_error_of_the_log() -> None:
    for payload in (b"[", b"\xff", b"[" * 100_000):
        with pytest.raises(FormatError):
            envelope_document(Envelope(payload, "a/b", (Signature("key", b"x" * 64),)).to_bytes())
