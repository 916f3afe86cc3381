"""`kolm doctor`: checks that a row's bits do not depend on other rows on this machine, and times passes."""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer import Option

from services.cli.frame import exits, options
from services.cli.frame.exits import Failed, UsageError
from services.cli.frame.output import answer, members, steps
from services.cli.frame.views import MARKS, Column, Line, Styled, Table, View, facts, joined, table
from services.generation.target.errors import TargetError

if TYPE_CHECKING:
    from services.generation.target.target import Target


T = TypeVar("T")

_LIBRARIES = ("torch", "numpy", "numba", "transformers", "tokenizers", "safetensors", "grpcio", "cryptography")


def _compile(asked: bool) -> None:
    """The callback of --compile. It runs before other options are read, so it needs no model."""
    if not asked:
        return

    print(f"all kernels are compiled: {compile_here()}")
    raise typer.Exit


def doctor(
    model: options.Model = options.MODEL,
    threads: Annotated[int | None, Option(min=1, help="Threads to compute with. Default: all CPUs.")] = None,
    compile: Annotated[
        bool,
        Option(
            "--compile",
            is_eager=True,
            callback=_compile,
            help="Only compile all kernels, for any model, so that the first start is faster.",
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Load a model, probe its numerics bit by bit, and time its passes. Exit code 3 if the probe fails."""
    found = diagnose(model, threads)
    answer(json, found, _diagnosis_view)
    raise typer.Exit(exits.OK if found["probe"]["passed"] else exits.VERIFICATION_FAILED)


def compile_here() -> Path:
    """Compile all kernels; returns their folder. Raises Failed on a CPU that cannot run them."""
    from services.generation.engine.numba_cache import compile_log
    from services.generation.target.kernels.compilation import cache_folder
    from services.generation.warm_up import compile_everything

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        with compile_log("sampling and drafts"):
            compile_everything()
    except TargetError as error:
        raise Failed(str(error)) from error
    return cache_folder()


def diagnose(model: Path, threads: int | None) -> dict[str, Any]:
    """Times in seconds, memory in bytes. Raises UsageError for a model that cannot be loaded anywhere, Failed if this
    machine cannot run it.
    """
    from services.generation.target.kernels.machine import cpus
    from services.generation.target.probe import measure_profile
    from services.generation.target.timing import time_passes

    threads = threads or cpus()
    seconds: dict[str, float] = {}
    with steps("loading") as step:
        target = _timed("loading", seconds, step, lambda: _load(model, threads))
        profile = _timed("probing", seconds, step, lambda: measure_profile(target))
        passes = _timed("timing", seconds, step, lambda: time_passes(target))
    config = target.config
    size = f"{config.layers} layers, vocabulary {config.vocab_size}, context {config.context_length}"
    identity = {"architecture": config.architecture, "size": size, **members(target, "base_cid", "tokenizer_cid")}
    return {
        "machine": {
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()}",
            "processor": _processor(),
            "cores": cpus(),
            "threads": threads,
            "memory": _memory(),
        },
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "seconds": seconds,
        "model": {"path": model, **identity},
        "probe": {"passed": profile.passed, **members(profile.report, "compared", "failures")},
        "profile_cid": profile.cid,
        "profile": profile.document,
        "passes": [{"rows": rows, "seconds": spent} for rows, spent in passes.samples],
        "one_row": {"fastest": min(passes.rounds), "slowest": max(passes.rounds), "changed": passes.changed},
    }


def _load(model: Path, threads: int) -> Target:
    """Load the target, and its tokenizer, because no request is served without one."""
    from services.generation.engine.text.tokenizer import Tokenizer
    from services.generation.target.cpu import load_target
    from services.generation.target.model_settings import PACKED_BYTES
    from services.generation.target.program.packed_files import PackedFolder

    try:
        target = load_target(model, threads=threads, packed=PackedFolder(PACKED_BYTES))
        Tokenizer(model)
        return target
    except TargetError as error:
        raise UsageError(f"--model: {error}") from error
    except (ImportError, OSError, RuntimeError) as error:
        raise Failed(f"cannot load {model} here: {error}") from error


def _timed(what: str, seconds: dict[str, float], step: Callable[[str], None], work: Callable[[], T]) -> T:
    step(what)
    started = time.perf_counter()
    result = work()
    seconds[what] = time.perf_counter() - started
    return result


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


def _diagnosis_view(found: dict[str, Any]) -> View:
    """Machine, model, probe, cost of a pass; the conclusion last."""
    one = found["passes"][0]["seconds"]
    costs = table(
        found["passes"],
        Column("rows", "rows", right=True),
        Column("pass", lambda row: f"{1e3 * row['seconds']:.2f} ms", right=True),
        Column("of one row", lambda row: f"{row['seconds'] / one:.2f} ×", right=True),
    )
    notes = _notes(found["one_row"])
    if found["probe"]["passed"]:
        return [_facts(found), "", costs, *notes, Styled("speculation may be served here", "green")]
    text = "a row's bits depend on other rows on this machine: passes would have one row, without speculation"
    failures = [f"  {failure}" for failure in found["probe"]["failures"][:5]]
    return [_facts(found), "", costs, *notes, Styled(text, "bold red"), *failures]


def _notes(one_row: dict[str, Any]) -> list[Styled]:
    """A note if the time of a pass over one row changed between rounds; otherwise nothing."""
    if not one_row["changed"]:
        return []
    fastest, slowest = (1e3 * one_row[name] for name in ("fastest", "slowest"))
    text = f"the memory's speed changed, or other programs ran: one row took {fastest:.2f} to {slowest:.2f} ms"
    return [Styled(text, "yellow")]


def _facts(found: dict[str, Any]) -> Table:
    machine, model, seconds, libraries = found["machine"], found["model"], found["seconds"], found["libraries"]
    versions = joined((f"{name} ", number or Styled("missing", "red")) for name, number in libraries.items())
    passed = found["probe"]["passed"]
    processor = f"{machine['processor']}, {machine['cores']} cores, {machine['memory'] / 2**30:.1f} GiB"
    rows: tuple[tuple[bool, str, Line], ...] = (
        (True, "machine", processor),
        (True, "system", f"{machine['system']}, Python {machine['python']}, {machine['threads']} threads"),
        (all(libraries.values()), "libraries", versions),
        (True, "model", f"{model['path']}: {model['architecture']}, {model['size']}"),
        (True, "base", model["base_cid"]),
        (True, "loaded", f"in {seconds['loading']:.1f} s"),
        (passed, "probe", _probe(found["probe"], seconds["probing"])),
        (passed, "profile", found["profile_cid"]),
        (True, "numerics", found["profile"]["arithmetic"]),
    )
    return facts(*((MARKS[mark], Styled(name, "bold"), value) for mark, name, value in rows))


def _probe(probe: dict[str, Any], seconds: float) -> Line:
    differ = len(probe["failures"])
    wrong = Styled(f", {differ} differ", "red") if differ else ", all bits equal"
    return (f"{probe['compared']} rows compared with the same rows computed alone", wrong, f", in {seconds:.1f} s")
