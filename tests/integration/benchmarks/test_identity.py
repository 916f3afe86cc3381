"""`python -m benchmarks.identity` against real HTTP servers, one of which changes a word when it drafts."""

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


@contextmanager
def served(lies: bool) -> Iterator[str]:
    """A chat completion that repeats the question; with `lies` it changes "b" unless the request says not to draft."""

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
