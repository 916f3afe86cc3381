"""`python -m benchmarks readme`: measure README.md's figures on one machine, commit and head, in 20 minutes at most.

Plain decoding and `auto`, greedy and at T = 1; the time of a replay; llama.cpp's programs, built for this CPU, in turns
with kolm on the same file; callers of OpenAI's API, first at kolm, then at llama-server.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import families, llama_cpp, load, steps
from benchmarks.measurement import Measurement, Subject
from benchmarks.specbench.measure import HEAD, STORE, Case
from benchmarks.specbench.measure import measure as speculation
from benchmarks.specbench.questions import OWN
from benchmarks.start import free_ports
from services.generation.target.kernels.machine import cpus
from services.generation.target.model_path import model_path

_MAX_TOKENS = 128
_CALLERS = (1, 16)
_SLOTS, _SLOT_TOKENS = 16, 1024
_START_SECONDS = 300.0


def main(arguments: Sequence[str]) -> None:
    given = _arguments(arguments)
    programs = given.llama_cpp or llama_cpp.built()
    figures = measure(programs, questions=given.questions)
    subject = Subject.of(
        model_path("smollm2"), head=HEAD, questions=f"{6 * given.questions} of {OWN.name}", max_tokens=_MAX_TOKENS
    )
    print(Measurement.now("readme", figures, subject).write())


def measure(llama: Path, *, questions: int) -> dict[str, Any]:
    """Measure the block's figures. `questions`: number of each of Spec-Bench's six kinds. `llama`: llama.cpp's folder.

    Raises SystemExit if a program fails.
    """
    cases = [Case(temperature, 1, None, questions) for temperature in (0.0, 1.0)]
    told = speculation(max_tokens=_MAX_TOKENS, cases=cases, methods=("off", "auto"))["cases"]
    audits = steps.measure_audits("int8", cpus())
    (peer,) = families.measure({"llama.cpp": llama}, [model_path("smollm2")], prompt=512, rounds=3)
    with _running_kolm() as (url, key):
        os.environ["OPENAI_API_KEY"] = key
        mine = load.measure(url, {}, rounds=2, counts=_CALLERS)["cases"]
    with _running_llama_server(llama / "llama-server") as url:
        its = load.measure(url, {}, rounds=2, counts=_CALLERS)["cases"]
    return {
        "decoding": {name: _decoding(case) for name, case in zip(("greedy", "t1"), told, strict=True)},
        "replay": audits,
        "peer": peer | {"version": _version(llama / "llama-server")},
        "callers": mine,
        "callers_peer": its,
    }


def _decoding(case: dict[str, Any]) -> dict[str, Any]:
    auto, off = case["contenders"]["kolm auto"], case["contenders"]["kolm off"]
    if auto["identical to plain"] != 1.0:
        raise SystemExit(
            f"auto gave other tokens than off in {1 - auto['identical to plain']:.1%} of the conversations"
        )
    return {
        "plain": f"{off['tokens_per_second']:.0f}",
        "auto": f"{auto['tokens_per_second']:.0f}",
        "speedup": auto["speedup"],
        "error": auto["error"],
        "kinds": {kind: each["speedup"] for kind, each in auto["kinds"].items()},
    }


@contextmanager
def _running_kolm() -> Iterator[tuple[str, str]]:
    """Run `kolm up` with the demo's head and datastore and no audits; yields its URL up to /v1, and an API key."""
    with tempfile.TemporaryDirectory() as folder:
        names = ("generation", "ledger", "auditor", "registry", "explorer", "http")
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        flags = [f"--{name}-port={port}" for name, port in ports.items()]
        command = [sys.executable, "-m", "services.cli", "up", f"--data-dir={folder}", "--audit-rate=0", *flags]
        command += [f"--head={HEAD}", f"--shared-datastore={STORE}"]
        with _running_server(command, f"http://127.0.0.1:{ports['http']}/health"):
            yield f"http://127.0.0.1:{ports['http']}/v1", (Path(folder) / "tokens" / "owner").read_text().strip()


@contextmanager
def _running_llama_server(program: Path) -> Iterator[str]:
    (port,) = free_ports(1)
    command = [
        program, "-m", model_path("smollm2"), "--port", port, "-t", cpus(), "-tb", cpus(), "--parallel", _SLOTS,
        "-c", _SLOTS * _SLOT_TOKENS, "--no-webui",
    ]  # fmt: skip
    with _running_server([*map(str, command)], f"http://127.0.0.1:{port}/health"):
        yield f"http://127.0.0.1:{port}/v1"


@contextmanager
def _running_server(command: Sequence[str], health: str) -> Iterator[None]:
    """Run a server in a process of its own; the block begins when it is healthy, and its end terminates the server."""
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL) as process,
    ):
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not _healthy(health):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    output = log.read()[-2000:].decode(errors="replace")
                    raise SystemExit(f"{' '.join(command)} does not answer; last output: {output}")
                time.sleep(0.5)
            yield
        finally:
            process.terminate()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _version(program: Path) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"version: (\S+)", done.stdout + done.stderr)
    return found[1] if found else "of an unknown version"


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks readme", description=__doc__)
    parser.add_argument(
        "--llama-cpp", type=Path, help="folder with llama-server and llama-bench; default: built in .cache"
    )
    parser.add_argument(
        "--questions", type=int, default=6, help="number of questions of each of the six kinds; default 6"
    )
    return parser.parse_args(arguments)
