"""Result files: what was measured, where, from which commit, and by which command.

A benchmark writes one JSON file for each machine and case into `benchmarks/results`, named
`<benchmark>[-<case>]-<machine>-<instruction set>.json`; a later run replaces it. `benchmarks.report` renders the pages
from these files alone.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS, read_bandwidth
from services.generation.target.cpu import profile_name
from services.generation.target.identity import FileDigests
from services.generation.target.kernels.machine import this_machine

_ROOT = Path(__file__).parents[1]
_MICROARCHITECTURES = {
    ("AuthenticAMD", 23): "zen2",
    ("AuthenticAMD", 25, 1): "zen3",
    ("AuthenticAMD", 25, 17): "zen4",
    ("AuthenticAMD", 26): "zen5",
    ("GenuineIntel", 6, 85): "skylake",
    ("GenuineIntel", 6, 106): "icelake",
    ("GenuineIntel", 6, 143): "sapphirerapids",
    ("GenuineIntel", 6, 173): "graniterapids",
    ("GenuineIntel", 6, 207): "emeraldrapids",
}
"""Names by CPUID's vendor and family, and model if the family is ambiguous."""


class MeasurementInvalid(ValueError):
    """A file among the results was not written by `Measurement.write`; the message names it."""


@dataclass(frozen=True, slots=True)
class Machine:
    """`bandwidth`: bytes a second that all cores together read from memory; None if it was not measured."""

    name: str
    processor: str
    cores: int
    instruction_set: str
    bandwidth: float | None

    @classmethod
    def here(cls) -> Machine:
        cpu = _cpuinfo()
        return cls(
            _microarchitecture(cpu),
            f"{cpu.get('model name', platform.processor())}, family {cpu.get('cpu family')}, model {cpu.get('model')}",
            os.cpu_count() or 1,
            this_machine().name,
            round(read_bandwidth() / 1e9, 1) * 1e9,
        )

    @property
    def slug(self) -> str:
        return f"{self.name}-{self.instruction_set}"


@dataclass(frozen=True, slots=True)
class Subject:
    """The measured model, head and questions; the digests are of the weights files."""

    model: str | None = None
    model_digest: str | None = None
    arithmetic: str | None = None
    head_digest: str | None = None
    questions: str | None = None
    max_tokens: int | None = None

    @classmethod
    def of(
        cls,
        model: Path | None = None,
        *,
        head: Path | None = None,
        arithmetic: str = "int8",
        questions: str | None = None,
        max_tokens: int | None = None,
    ) -> Subject:
        digest = FileDigests().digest
        return cls(
            model.name if model else None,
            digest(model) if model and model.is_file() else None,
            profile_name(arithmetic),
            digest(head / "model.safetensors") if head else None,
            questions,
            max_tokens,
        )


@dataclass(frozen=True, slots=True)
class Measurement:
    """`commit` is HEAD, with `+` if tracked files other than results and pages had changed. `date` is RFC 3339, UTC."""

    benchmark: str
    case: str
    commit: str
    date: str
    version: str
    command: str
    machine: Machine
    subject: Subject
    figures: Any

    @classmethod
    def now(cls, benchmark: str, figures: Any, subject: Subject, *, case: str = "") -> Measurement:
        """A record of a measurement that this process has just made."""
        commit = _git("rev-parse", "--short=12", "HEAD") or "unknown"
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results", ":!*.md")
        return cls(
            benchmark,
            case,
            commit + ("+" if changed else ""),
            datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
            version("kolm-serve"),
            _command(),
            Machine.here(),
            subject,
            figures,
        )

    @property
    def name(self) -> str:
        return "-".join(part for part in (self.benchmark, self.case, self.machine.slug) if part)

    def write(self, folder: Path = RESULTS) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")
        return path


def known_figures(benchmark: str, folder: Path = RESULTS) -> Any:
    """The figures of a benchmark's record for this machine, for a caller to extend; None if there is no record."""
    slug = Machine.here().slug
    found = (each for each in measurements(folder) if each.benchmark == benchmark and each.machine.slug == slug)
    return next((each.figures for each in found), None)


def measurements(folder: Path = RESULTS) -> Iterator[Measurement]:
    """Yield all records of a folder, in the order of file names. Raises MeasurementInvalid."""
    for path in sorted(folder.glob("*.json")):
        record = _read(path)
        if path.stem != record.name:
            raise MeasurementInvalid(f"{path}: contains the record {record.name}; expected a file of that name")
        yield record


def _read(path: Path) -> Measurement:
    try:
        document = json.loads(path.read_bytes())
        machine, subject = Machine(**document.pop("machine")), Subject(**document.pop("subject"))
        return Measurement(machine=machine, subject=subject, **document)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MeasurementInvalid(f"{path}: is not a result file: {error}; measure again") from error


def _cpuinfo() -> dict[str, str]:
    pairs = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _microarchitecture(cpu: dict[str, str]) -> str:
    vendor, family, model = cpu.get("vendor_id", ""), int(cpu.get("cpu family", 0)), int(cpu.get("model", 0))
    known = _MICROARCHITECTURES.get((vendor, family, model)) or _MICROARCHITECTURES.get((vendor, family))
    return known or f"{(vendor or platform.machine()).lower()}-{family}-{model}"


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _command() -> str:
    """The command line of this process, with absolute paths shortened to their names."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    name = (module.name if module else "benchmarks").removesuffix(".__main__")
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    variables = [f"{key}={os.environ[key]}" for key in ("KOLM_INSTRUCTION_SET",) if key in os.environ]
    return " ".join([*variables, "python -m", name, *words])
