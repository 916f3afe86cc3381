"""The first minutes with kolm as plain text: docs/first-minutes.txt, written and replayed by running its commands.

    python -m demo.first_minutes        (writes the file anew)

Lines that begin with `$ ` are commands, run in a folder of their own against `kolm up` on free ports; what follows is
what they print. `tests/e2e/test_first_minutes.py` runs them and compares the shapes of what comes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDING = ROOT / "docs" / "first-minutes.txt"
KOLM = (sys.executable, "-m", "services.cli")
_SERVICES = ("generation", "ledger", "auditor", "registry")
_PATIENCE = 300.0  # seconds until an auditor has judged what was asked


@dataclass(frozen=True, slots=True)
class Step:
    """A line of the recording that does something, and what came of it."""

    line: str
    output: str


def recorded(text: str) -> list[Step]:
    """The steps of a recording. Text before the first one is its opening."""
    parts = re.split(r"^(\$ .*|# .*)\n", text, flags=re.MULTILINE)[1:]
    return [Step(line, output) for line, output in zip(parts[::2], parts[1::2], strict=True)]


def run(lines: list[str], folder: Path) -> Iterator[Step]:
    """Run the lines in `folder`. The first starts the services, which are stopped at the end."""
    first, *others = lines
    with _up(first, folder) as (said, environment):
        yield Step(first, said)
        for line in others:
            if line.startswith("#"):
                _until_judged(folder, environment)
                yield Step(line, "")
            else:
                yield Step(line, _kolm(line, folder, environment))


def shape(output: str) -> str:
    """What does not change from run to run: the words, without numbers, ids, times and where lines break. What was
    drafted and how fast it was is left out: that is a matter of measured costs.
    """
    whole = re.sub(r"(?<=[0-9a-f]{20})\n +(?=[0-9a-f]+\b)", "", output)  # digests that a table has broken
    whole = re.sub(r"tokens per pass.*", "tokens per pass", whole)
    whole = re.sub(r"tokens in .*? s \(.*?\)", "tokens in TIME", whole)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", " ".join(whole.split()))
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"passes by .*? identical to off", "identical to off", text)
    text = re.sub(r"dated .*? ago", "dated AGO", text)
    return re.sub(r"[0-9a-f]{7,}|\d[\d.,]*", "N", text)


@contextmanager
def _up(line: str, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """What `kolm up` itself says until it is ready, and the environment of commands that ask its services."""
    free = [f"--{service}-port=0" for service in (*_SERVICES, "explorer", "http")]
    own = {name: value for name, value in os.environ.items() if not name.startswith("KOLM_")}
    environment = {**own, "COLUMNS": "80", "TERM": "dumb", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
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
                ready.replace(f"{ROOT}/", ""),
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
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{line} ended with {done.returncode}: {done.stdout}")
    return done.stdout.replace(f"{ROOT}/", "")


def _until_judged(folder: Path, environment: dict[str, str]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        listed = json.loads(_kolm("$ kolm receipts list --json", folder, environment))
        if all(each["outcome"] for each in listed):
            return
    raise TimeoutError("the auditor has not judged every receipt")


def main() -> None:
    """Write the recording anew."""
    text = RECORDING.read_text("utf-8")
    opening = re.split(r"^\$ ", text, maxsplit=1, flags=re.MULTILINE)[0]
    with tempfile.TemporaryDirectory() as folder:
        steps = list(run([step.line for step in recorded(text)], Path(folder)))
    lines = [each.rstrip() for step in steps for each in (step.line, *step.output.splitlines())]
    RECORDING.write_text(opening + "\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
