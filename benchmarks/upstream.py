"""Another engine that is asked as the generation service asks it: token ids in, token ids out."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.generation.engine.request import EngineRequest
from services.generation.remote.dialects import DIALECTS, Answer

_START_SECONDS, _ANSWER_SECONDS = 900, 7200  # on a machine that others use
_CONTEXT = 2048  # tokens of a slot


class Upstream:
    """vLLM, SGLang or llama-server at a URL. Raises OSError if it does not answer."""

    def __init__(self, engine: str, url: str) -> None:
        self._dialect, self.url = DIALECTS[engine], url.rstrip("/")
        self._about = asyncio.run(self._dialect.about(self._ask))
        self.name = f"{engine} {self._about.version}"

    def outputs(self, requests: Sequence[EngineRequest], at_once: int) -> list[tuple[int, ...]]:
        with ThreadPoolExecutor(at_once) as callers:
            return list(callers.map(self._output, requests))

    def _output(self, request: EngineRequest) -> tuple[int, ...]:
        answer = Answer()
        body = self._dialect.body(request, self._about.model, None, stream=False)
        self._dialect.read(json.loads(_answered(self.url + self._dialect.path, body)), answer)
        return tuple(answer.ids)

    async def _ask(self, path: str, body: Mapping[str, Any] | None) -> Any:
        text = _answered(self.url + path, body)
        try:
            return json.loads(text)
        except ValueError:
            return text


def _answered(url: str, body: Mapping[str, Any] | None) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as response:
        return str(response.read().decode())


@contextmanager
def llama_server(binary: str | None, model: Path, *flags: str, slots: int = 16) -> Iterator[Upstream]:
    """llama.cpp's server on a free port, one thread, until the block ends: the program, or xllamacpp's copy.

    Raises OSError if it does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program = [sys.executable, "-m", "benchmarks.llama_server"] if binary is None else [binary, "--no-webui"]
    sizes = f"--cache-ram 0 -c {_CONTEXT * slots} -np {slots} -t 1 -tb 1 --port {port}".split()
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([*program, "-m", str(model), *sizes, *flags], stdout=quiet, stderr=quiet)
    try:
        yield _started(process, f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait()


def _started(process: subprocess.Popen[bytes], url: str) -> Upstream:
    end = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            _answered(f"{url}/health", None)
            return Upstream("llama-server", url)
        except OSError:
            time.sleep(1)
    raise OSError(f"{process.args!r} does not serve")
