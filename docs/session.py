"""Commands of a page, run against `kolm up` in a folder of their own, and what of their output never changes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
KOLM = (sys.executable, "-m", "services.cli")
_SERVICES = ("generation", "ledger", "auditor", "registry")
_PATIENCE = 300.0  # seconds until an auditor has judged what was asked


@dataclass(frozen=True, slots=True)
class Step:
    """A line that does something, and what came of it. One that begins with `#` waits until every receipt is judged."""

    line: str
    output: str


def recorded(text: str) -> list[Step]:
    """The steps of a recording. Text before the first one is its opening."""
    parts = re.split(r"^(\$ .*|# .*)\n", text, flags=re.MULTILINE)[1:]
    return [Step(line, output) for line, output in zip(parts[::2], parts[1::2], strict=True)]


def run(lines: list[str], folder: Path, columns: int) -> Iterator[Step]:
    """Run the lines in `folder`. The first starts the services, on free ports; they are stopped at the end.

    Raises RuntimeError for a command that fails.
    """
    first, *others = lines
    with _up(first, folder, columns) as (said, environment):
        yield Step(first, said)
        for line in others:
            if line.startswith("#"):
                until_judged(lambda: json.loads(_kolm("$ kolm receipts list --json", folder, environment)))
                yield Step(line, "")
            else:
                yield Step(line, _kolm(line, folder, environment))


def shape(output: str) -> str:
    """The part that does not change from run to run: words, without numbers, ids, times and line breaks.

    Drafts and speeds are left out: they depend on measured costs.
    """
    whole = re.sub(r"(?<=[0-9a-f]{20})\n +(?=[0-9a-f]+\b)", "", output)  # digests that a table has broken
    whole = re.sub(r"^(method \w+(?: \([^)\n]*\))?): [\d.]+ tokens per pass.*$", r"\1", whole, flags=re.MULTILINE)
    whole = re.sub(r"tokens in .*? s \(.*?\)", "tokens in TIME", whole)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", " ".join(whole.split()))
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"passes of the target.*? identical to off", "identical to off", text)
    text = re.sub(r"dated .*? ago", "dated AGO", text)
    text = re.sub("─{2,}", "LINE", text)
    return re.sub(r"[0-9a-f]{7,}|\d[\d.,]*", "N", text)


def until_judged(receipts: Callable[[], list[dict[str, object]]]) -> None:
    """Ask for the receipts until an auditor has judged all of them. Raises TimeoutError."""
    deadline = time.monotonic() + _PATIENCE
    while not all(each["outcome"] for each in receipts()):
        if time.monotonic() > deadline:
            raise TimeoutError("the auditor has not judged every receipt")


@contextmanager
def _up(line: str, folder: Path, columns: int) -> Iterator[tuple[str, dict[str, str]]]:
    """The lines of `kolm up` until it is ready, and the environment of commands that ask its services."""
    free = [f"--{service}-port=0" for service in (*_SERVICES, "explorer", "http")]
    own = {name: value for name, value in os.environ.items() if not name.startswith("KOLM_")}
    environment = {**own, "COLUMNS": str(columns), "TERM": "dumb", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [*KOLM, *_words(line), *free]
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = []
            for each in process.stderr:
                if each.strip().startswith("kolm │") and not re.search(r"│ \w+, \d+ s: ", each):
                    said.append(each)
                if "try: kolm generate" in each:
                    break
            ready = "".join(said)
            places = dict(re.findall(r"(\w+) (127\.0\.0\.1:\d+)", ready))
            yield (
                re.sub(r"kolm_[\w-]{43}", "kolm_…", ready.replace(f"{ROOT}/", "")),
                environment | {f"KOLM_{name.upper()}": places[name] for name in _SERVICES},
            )
        finally:
            process.terminate()
            process.communicate()


def _words(line: str) -> list[str]:
    program, *words = shlex.split(line.removeprefix("$ "))
    assert program == "kolm"
    return [word.replace("demo/", f"{ROOT}/demo/") for word in words]


def _kolm(line: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [*KOLM, *_words(line)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{line} ended with {done.returncode}: {done.stdout}")
    return done.stdout.replace(f"{ROOT}/", "")
