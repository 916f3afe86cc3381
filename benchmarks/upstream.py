"""Another engine that is asked as the generation service asks it: token ids in, token ids out."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from services.generation.engine.request import EngineRequest
from services.generation.remote.again import PlainEngine

_START_SECONDS, _ANSWER_SECONDS = 900, 7200  # on a machine that others use
_CONTEXT = 2048  # tokens of a slot
VLLM_NGRAMS = (
    "--speculative-config",
    '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4,"prompt_lookup_min":2}',
)
"""Flags of vLLM that drafts the tokens after earlier n-grams, as in docs/engines.md."""


class Upstream:
    """vLLM, SGLang or llama-server at a URL. Raises UpstreamDown if it does not answer."""

    def __init__(self, engine: str, url: str) -> None:
        self.url = url.rstrip("/")
        self._engine = PlainEngine(engine, self.url, silence_seconds=_ANSWER_SECONDS)
        self.name = f"{engine} {self._engine.about().version}"

    def outputs(self, requests: Sequence[EngineRequest], at_once: int) -> list[tuple[int, ...]]:
        with ThreadPoolExecutor(at_once) as callers:
            return [outcome.token_ids for outcome in callers.map(self._engine.again, requests)]


@contextmanager
def llama_server(binary: str | None, model: Path, *flags: str, slots: int = 16) -> Iterator[Upstream]:
    """llama.cpp's server on a free port, one thread, until the block ends: the program, or xllamacpp's copy.

    Raises OSError if it does not start.
    """
    program = [sys.executable, "-m", "benchmarks.llama_server"] if binary is None else [binary, "--no-webui"]
    sizes = f"--cache-ram 0 -c {_CONTEXT * slots} -np {slots} -t 1 -tb 1".split()
    with _running("llama-server", [*program, "-m", str(model), *sizes, *flags]) as server:
        yield server


@contextmanager
def vllm(program: str | None, folder: Path, *flags: str) -> Iterator[Upstream]:
    """vLLM on a free port, in bfloat16 without compilation, until the block ends. Its environment is this process's.

    Raises OSError if it does not start.
    """
    sizes = f"--served-model-name {folder.name} --max-model-len {_CONTEXT} --dtype bfloat16 --enforce-eager".split()
    with _running("vllm", [program or "vllm", "serve", str(folder), *sizes, *flags]) as server:
        yield server


@contextmanager
def _running(engine: str, command: Sequence[str]) -> Iterator[Upstream]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([*command, "--port", port], stdout=quiet, stderr=quiet)
    try:
        yield _started(engine, process, f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait()


def _started(engine: str, process: subprocess.Popen[bytes], url: str) -> Upstream:
    end = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=_ANSWER_SECONDS):
                return Upstream(engine, url)
        except OSError:
            time.sleep(1)
    raise OSError(f"{process.args!r} does not serve")
