"""The delay of a chunk by streaming over gRPC: from the end of its pass until the client has it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.prompts import conversations
from services.client.generation.completion import Chunk
from services.client.generation.request import Request, SamplingParams, SpecDecodeConfig
from services.client.generation.runtime import Runtime

_START_SECONDS = 120.0


def measure(model: Path, *, prompts: int, max_tokens: int) -> dict[str, Any]:
    """Milliseconds per chunk over real processes on loopback; one stream at a time, speculation off, a token a pass."""
    delays: list[float] = []
    with tempfile.TemporaryDirectory() as folder, _server(model, Path(folder)) as (runtime, stamps):
        for messages in conversations("code", prompts):
            delays += _delays(runtime, stamps, messages[-1]["content"], max_tokens)
    return {
        "chunks": len(delays),
        "median_ms": round(1e3 * median(delays), 3),
        "p99_ms": round(1e3 * quantiles(delays, n=100)[-1], 3),
    }


def _delays(runtime: Runtime, stamps: Path, prompt: str, max_tokens: int) -> list[float]:
    """The n-th token comes from the n-th pass counted from the end of the request, which emits none after its last."""
    request = Request(prompt=prompt, sampling=SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True))
    arrivals: list[tuple[int, float]] = []
    received = 0
    with runtime.stream(request, spec_decode=SpecDecodeConfig(method="off")) as events:
        for event in events:
            if isinstance(event, Chunk):
                received += len(event.token_ids)
                arrivals.append((received, time.monotonic()))
    passes = [float(line) for line in stamps.read_text().split()][-received:]
    return [arrived - passes[tokens - 1] for tokens, arrived in arrivals]


@contextmanager
def _server(model: Path, folder: Path) -> Iterator[tuple[Runtime, Path]]:
    stamps, ready = folder / "stamps", folder / "ready"
    command = [
        sys.executable, "-m", "benchmarks.stamped_server", "--model", str(model), "--listen", "127.0.0.1:0",
        "--state-dir", str(folder / "state"), "--ready-file", str(ready), "--ledger", "127.0.0.1:1",
        "--append-seconds", "0",
    ]  # fmt: skip
    process = subprocess.Popen(command, env={**os.environ, "KOLM_BENCHMARK_STAMPS": str(stamps)})
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the generation service did not start")
            time.sleep(0.05)
        with Runtime.connect(ready.read_text().strip(), wait=10.0) as runtime:
            yield runtime, stamps
    finally:
        process.terminate()
        process.wait(timeout=30)
