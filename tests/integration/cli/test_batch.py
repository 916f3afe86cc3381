"""`kolm batch` against a scripted server: a result for each line, also after a kill."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from rich.console import Console
from typer.testing import CliRunner

from ledger.bundle.receipt_file import ReceiptFile
from services.cli.jobs.batch import work
from services.cli.jobs.batch.results import Results
from services.cli.main import app
from services.cli.terminal import progress
from tests.integration.cli.scripted import ScriptedGeneration

PATIENCE = 240.0


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "requests.jsonl", tmp_path / "results.jsonl"


def chat(custom_id: str, content: str, **members: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": content}], **members}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def write(path: Path, lines: list[Any]) -> None:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))


def read(path: Path) -> dict[Any, Any]:
    results = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({each["id"] for each in results}) == len(results)
    found = {each["custom_id"] or each["error"]["line"]: each for each in results}
    assert len(found) == len(results)
    return found


def run(address: str, files: tuple[Path, Path], *flags: str) -> tuple[int, str, str]:
    requests, out = files
    result = CliRunner().invoke(app, ["batch", str(requests), "-o", str(out), f"--generation={address}", *flags])
    return result.exit_code, result.stdout, result.stderr


def test_each_line_is_answered_as_the_endpoint_would_with_its_receipt(
    address: str, files: tuple[Path, Path], scripted: ScriptedGeneration
) -> None:
    raw = {"custom_id": "raw", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "seed": 3}}
    named = chat("named", "hello", kolm={"request_id": "mine", "receipt_files": True})
    write(files[0], [chat("one", "hello", temperature=0), "", raw, named])
    code, out, _ = run(address, files, "--json")
    assert (code, json.loads(out)["answered"], json.loads(out)["failed"]) == (0, 3, 0)
    results = read(files[1])
    bodies = {name: each["response"]["body"] for name, each in results.items()}
    assert all(each["error"] is None and each["response"]["status_code"] == 200 for each in results.values())
    assert ChatCompletion.model_validate(bodies["one"]).choices[0].message.content == "one \x1b[31mtwo"
    assert Completion.model_validate(bodies["raw"]).choices[0].text == "one \x1b[31mtwo"
    assert {each.request_id for each in scripted.requests} == {"one", "raw", "mine"}
    assert bodies["one"]["kolm"]["receipts"][0]["ledger_index"] == 7
    assert "file" not in bodies["one"]["kolm"]["receipts"][0]
    assert (
        ReceiptFile.from_bytes(bodies["named"]["kolm"]["receipts"][0]["file"].encode()).receipt().request_id == "mine"
    )


def test_bad_lines_are_errors_and_the_others_are_answered(address: str, files: tuple[Path, Path]) -> None:
    good = chat("good", "hello")
    lines: list[Any] = [
        "{", "[]", {"custom_id": 7}, good, good, {**good, "custom_id": "m", "method": "GET"},
        {**good, "custom_id": "u", "url": "/v1/embeddings"}, {**good, "custom_id": "b", "body": 1},
        chat("s", "hello", stream=True), {**good, "custom_id": "x", "extra": 1}, chat("f", "hello", temprature=1),
        chat("w", "wrong"), chat("\ud800", "hello"),
    ]  # fmt: skip
    write(files[0], lines)
    code, _, err = run(address, files)
    assert (code, "11 lines failed" in err) == (1, True)
    results = read(files[1])
    codes = {name: each["error"] and each["error"]["code"] for name, each in results.items()}
    assert codes == {
        1: "invalid_json_line", 2: "invalid_request", 3: "missing_required_parameter", "good": None,
        5: "duplicate_custom_id", "m": "invalid_method", "u": "invalid_url", "b": "missing_required_parameter",
        "s": "invalid_value", "x": "unknown_parameter", "f": None, "w": None, "\ud800": None,
    }  # fmt: skip
    said = {name: results[name]["response"] for name in ("f", "w")}
    assert {each["status_code"] for each in said.values()} == {400}
    assert said["f"]["body"]["error"]["param"] == "temprature"
    assert said["w"]["body"]["error"]["param"] == "kolm.k"
    assert results["\ud800"]["response"]["status_code"] == 200


def test_a_busy_server_is_asked_again_and_not_for_ever(
    address: str, files: tuple[Path, Path], scripted: ScriptedGeneration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "_FIRST_WAIT", 0.01)
    write(files[0], [chat("a", "busy"), chat("b", "always busy")])
    assert run(address, files, "--retries=3")[0] == 1
    statuses = {name: each["response"]["status_code"] for name, each in read(files[1]).items()}
    assert statuses == {"a": 200, "b": 429}
    assert len(scripted.requests) == 3 + 4
    assert run(address, files, "--retries=0")[0] == 1
    assert len(scripted.requests) == 8, "what is answered is not asked again, what found it busy is"


def test_a_bar_on_a_terminal_shows_how_many_lines_are_done_and_failed(
    address: str, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = StringIO()
    monkeypatch.setattr(progress, "talk", lambda: Console(file=shown, force_terminal=True, width=80))
    write(files[0], [chat("one", "hello"), "{", chat("two", "hello")])
    assert run(address, files)[0] == 1
    assert "3/3 1 failed" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue())


def test_a_killed_batch_goes_on_where_it_was(
    address: str, files: tuple[Path, Path], scripted: ScriptedGeneration
) -> None:
    write(files[0], [chat("one", "hello"), "{", chat("two", "forever"), chat("three", "hello")])
    command = [sys.executable, "-m", "services.cli", "batch", str(files[0]), "-o", str(files[1])]
    process = subprocess.Popen([*command, f"--generation={address}", "--concurrency=1"])
    try:
        assert scripted.running.wait(PATIENCE)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert set(read(files[1])) == {"one", 2}
    with files[1].open("a") as torn:
        torn.write('{"id": "batch_req_x", "custom_id": "thr')
    write(files[0], [chat("one", "hello"), "{", chat("two", "hello"), chat("three", "hello")])
    assert run(address, files)[0] == 0
    assert set(read(files[1])) == {"one", 2, "two", "three"}
    assert [each.request_id for each in scripted.requests].count("one") == 1


def test_two_batches_do_not_write_one_file(
    address: str, files: tuple[Path, Path], scripted: ScriptedGeneration
) -> None:
    write(files[0], [chat("a", "one")])
    with Results(files[1]) as results:
        code, _, said = run(address, files)
        assert (code, "another batch writes it" in said) == (2, True)
        results.add({"id": "x", "custom_id": "a", "response": {"status_code": 200}, "error": None})
    assert set(read(files[1])) == {"a"}
    assert run(address, files)[0] == 0
    assert list(files[1].parent.glob("*.part")) == []


def test_control_c_leaves_what_is_done(address: str, files: tuple[Path, Path], scripted: ScriptedGeneration) -> None:
    write(files[0], [chat("one", "hello"), chat("two", "forever")])
    command = [sys.executable, "-m", "services.cli", "batch", str(files[0]), "-o", str(files[1])]
    process = subprocess.Popen(
        [*command, f"--generation={address}", "--concurrency=1"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert scripted.running.wait(PATIENCE)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert (process.returncode, err) == (130, "interrupted; the same command goes on with what is left\n")
    assert scripted.cancelled.wait(PATIENCE)
    assert set(read(files[1])) == {"one"}


@pytest.mark.parametrize("content", ["{}\n", "hello\n", '{"custom_id": null, "response": null, "error": null}\n'])
def test_a_file_of_something_else_is_left_as_it_is(address: str, files: tuple[Path, Path], content: str) -> None:
    write(files[0], [chat("one", "hello")])
    files[1].write_text(content)
    code, _, err = run(address, files)
    assert (code, "is no result of a batch" in err) == (2, True)
    assert files[1].read_text() == content
    assert run(address, (files[0].with_name("gone"), files[1]))[0] == 2
    assert run(address, (files[0], files[0]))[0] == 2
