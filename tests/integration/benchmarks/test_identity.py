"""`python -m benchmarks.identity`: shares of identical answers with intervals, and a server that alters answers."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks import identity
from benchmarks.exactness import Engine, Outputs, Prompts, rows
from benchmarks.identity import Answer, Asked, Compared, compare, first_difference, read_completion, report
from benchmarks.specbench.questions import Question


@contextmanager
def served(lies: bool) -> Iterator[str]:
    """A chat completion that repeats the question; with `lies` it changes "b" unless the request turns drafts off."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = body["messages"][-1]["content"]
            if text == "broken":
                self.send_error(503)
                return
            content = text.replace("b", "B") if lies and body.get("draft", True) else text
            data = json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *flags: str, questions: str = "abc xyz") -> tuple[int, Any]:
    lines = (json.dumps({"category": "qa", "turns": [turn]}) for turn in questions.split())
    (folder / "q.jsonl").write_text("\n".join(lines))
    out = folder / "out.json"
    monkeypatch.setattr(sys, "argv", ["identity", f"--questions={folder / 'q.jsonl'}", f"--out={out}", *flags])
    code = identity.main()
    return code, json.loads(out.read_text()) if out.exists() else None


def test_two_servers_are_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with served(lies=True) as fast, served(lies=False) as plain:
        code, report = run(monkeypatch, tmp_path, f"--base-url={fast}", f"--plain-url={plain}")
        assert (code, report["speculation = plain"]["identical"], report["requests"]) == (1, 1, 2)
        assert report["plain = plain again"]["identical"] == 2
        assert [each["first difference"] for each in report["different"]] == [1]
        code, report = run(monkeypatch, tmp_path, f"--base-url={plain}", f"--plain-url={plain}")
        assert (code, report["different"]) == (0, [])


def test_a_member_of_the_request_turns_speculation_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with served(lies=True) as fast:
        code, report = run(monkeypatch, tmp_path, f"--base-url={fast}", '--plain-extra={"draft": false}')
    assert (code, report["speculation = plain"]["identical"]) == (1, 1)


def test_no_answer_is_no_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(lies=False) as plain:
        flags = (f"--base-url={plain}", f"--plain-url={plain}")
        assert run(monkeypatch, tmp_path, *flags, questions="broken") == (2, None)
    assert "HTTP 503" in capsys.readouterr().err
    assert run(monkeypatch, tmp_path, "--base-url=http://127.0.0.1:1/v1", "--plain-extra={}", "--model=m")[0] == 2
    assert "--plain-url" in capsys.readouterr().err
    assert run(monkeypatch, tmp_path)[0] == 2
    assert "expected --base-url URL or --kolm" in capsys.readouterr().err


class Scripted:
    """Answers with the number of the request, behind a beginning."""

    def __init__(self, name: str, beginning: str = "answer") -> None:
        self.name, self._beginning = name, beginning
        self.asked: list[Asked] = []

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        return Answer(f"{self._beginning} to {asked.messages[-1][1]}")


def ask(messages: tuple[tuple[str, str], ...]) -> Asked:
    return Asked(messages, 9, 0.0, 7)


def test_prompts_go_on_from_plain_answers_for_both() -> None:
    plain, fast = Scripted("plain"), Scripted("fast", "other")
    list(compare([Question("1", "qa", ("a", "b"))], plain, fast, ask))
    second = (("user", "a"), ("assistant", "answer to a"), ("user", "b"))
    assert [asked.messages for asked in fast.asked] == [(("user", "a"),), second]
    assert [asked.messages for asked in plain.asked] == [(("user", "a"),), (("user", "a"),), second, second]


def test_a_report_counts_what_differs_and_whether_plain_repeats_itself() -> None:
    one, other = Answer("abc"), Answer("abd")
    found = report([Compared("1", "qa", 0, one, one, one), Compared("2", "rag", 0, one, other, other)])
    assert (found["requests"], found["compared by"]) == (2, "text")
    assert (found["speculation = plain"]["share"], found["plain = plain again"]["share"]) == (0.5, 0.5)
    assert found["kinds"]["rag"]["identical"] == 0
    assert found["different"] == [{"question": "2", "turn": 0, "first difference": 2, "plain repeats itself": False}]


def test_token_ids_count_where_both_have_them() -> None:
    alike, other = Answer("ab", (1, 2)), Answer("ab", (3,))
    assert first_difference(alike, other) == 0
    assert first_difference(alike, Answer("ab")) is None
    assert first_difference(Answer("", (1,)), Answer("", (1, 2))) == 1
    assert report([Compared("1", "qa", 0, alike, alike, alike)])["compared by"] == "token ids"


def test_a_completion_is_read_with_token_ids_if_there() -> None:
    plain = {"choices": [{"message": {"content": "hi"}}]}
    assert read_completion(json.dumps(plain).encode()) == Answer("hi")
    plain["choices"][0]["token_ids"] = [1, 2]  # type: ignore[assignment]
    assert read_completion(json.dumps(plain).encode()) == Answer("hi", (1, 2))


def counted(engine: Engine, at_once: tuple[int, ...]) -> list[tuple[Any, ...]]:
    names = (
        "method", "at once", "tokens", "changed", "changed per 1,000 tokens", "plain differs from plain again",
        "plain differs from plain alone",
    )  # fmt: skip
    return [tuple(row[name] for name in names) for row in rows(engine, ((1,), (2,), (3,)), at_once)]


def test_a_row_says_what_speculation_changed_and_what_the_load_alone_did() -> None:
    """Alone, drafts change one of three outputs. With eight in parallel plain has another first output, and never the
    same third output.
    """
    asked: list[int] = []

    def plain(prompts: Prompts, at_once: int) -> Outputs:
        asked.append(at_once)
        loaded: dict[tuple[int, ...], int] = {(1,): 9, (3,): len(asked)} if at_once > 1 else {}
        return [(*prompt, 7, loaded.get(prompt, 0)) for prompt in prompts]

    def drafted(prompts: Prompts, at_once: int) -> Outputs:
        return [(*prompt, 8 if prompt == (2,) else 7, 0) for prompt in prompts]

    engine = Engine("engine 1", plain, {"same": lambda *given: plain(*given), "n-gram": drafted}, (1, 8, 16))
    assert counted(engine, (1, 8)) == [
        ("same", 1, 9, 0, 0.0, 0, 0), ("n-gram", 1, 9, 1, 111.11, 0, 0),
        ("same", 8, 9, 1, 111.11, 1, 2), ("n-gram", 8, 9, 3, 333.33, 1, 2),
    ]  # fmt: skip
    assert asked == [1, 1, 1, 8, 8, 8]  # no batch of sixteen was asked for
