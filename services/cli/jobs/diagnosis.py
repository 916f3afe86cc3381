"""Diagnoses a machine and a model: does what the generation service does at its start."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

from rich.status import Status

from services.cli.failures.exits import Failed, UsageError
from services.cli.terminal.output import talk
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.calibration import time_passes
from services.generation.target.cpu import load_target
from services.generation.target.errors import TargetError
from services.generation.target.kernels.machine import cpus
from services.generation.target.probe import NumericsProfile, measure_profile
from services.generation.target.target import Target

T = TypeVar("T")

_LIBRARIES = ("torch", "numpy", "numba", "transformers", "tokenizers", "safetensors", "grpcio", "cryptography")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that this runs on; memory in bytes."""

    python: str
    system: str
    processor: str
    cores: int
    threads: int
    memory: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings. `passes` are (rows, seconds); `seconds` are the times of loading, probing and timing."""

    machine: Machine
    libraries: dict[str, str | None]
    model: Path
    architecture: str
    size: str
    base_cid: str
    tokenizer_cid: str
    profile: NumericsProfile
    passes: list[tuple[int, float]]
    seconds: dict[str, float]


def diagnose(model: Path, threads: int | None) -> Diagnosis:
    """Raises UsageError for a model that cannot be loaded anywhere, Failed for one that this machine cannot run."""
    threads = threads or cpus()
    seconds: dict[str, float] = {}
    with talk().status("") as status:
        target = _timed("loading", seconds, status, lambda: _load(model, threads))
        profile = _timed("probing", seconds, status, lambda: measure_profile(target))
        passes = _timed("timing", seconds, status, lambda: time_passes(target))
    return Diagnosis(
        machine=_machine(threads),
        libraries={name: _version(name) for name in _LIBRARIES},
        model=model,
        architecture=target.config.architecture,
        size=f"{target.config.layers} layers, vocabulary {target.config.vocab_size}, "
        f"context {target.config.context_length}",
        base_cid=target.base_cid,
        tokenizer_cid=target.tokenizer_cid,
        profile=profile,
        passes=passes,
        seconds=seconds,
    )


def _load(model: Path, threads: int) -> Target:
    """The target. Its tokenizer is loaded too, because no request is served without one."""
    try:
        target = load_target(model, threads=threads)
        Tokenizer(model)
        return target
    except TargetError as error:
        raise UsageError(f"--model: {error}") from error
    except (ImportError, OSError, RuntimeError) as error:
        raise Failed(f"cannot load {model} here: {error}") from error


def _timed(what: str, seconds: dict[str, float], status: Status, work: Callable[[], T]) -> T:
    status.update(f"{what} …")
    started = time.perf_counter()
    result = work()
    seconds[what] = time.perf_counter() - started
    return result


def _machine(threads: int) -> Machine:
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=threads,
        memory=_memory(),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
