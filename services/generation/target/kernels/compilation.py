"""Kernels as machine code: compiled once for a machine, kept on disk as object code, loaded in milliseconds."""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import itertools
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from services.generation.state_folder import LOADING, one_at_a_time
from services.generation.target.errors import TargetError
from services.generation.target.kernels import convolution, delta, experts, row_operations, team
from services.generation.target.kernels.attention import attend, rotation
from services.generation.target.kernels.attention.cache_dtypes import FORMS
from services.generation.target.kernels.attention.form import build_move
from services.generation.target.kernels.linear import integer, linear
from services.generation.target.kernels.machine import MACHINES, Machine, looks_ahead, this_machine
from services.generation.target.kernels.storages import STORAGES, packed_as

_log = logging.getLogger(__name__)


CACHE = "KOLM_KERNEL_CACHE"
"""Environment variable: the folder of compiled code."""


_HERE = Path(__file__).parent
_NOWHERE = Path("/nonexistent")


def user_cache() -> Path:
    """`$XDG_CACHE_HOME/kolm`, by default `~/.cache/kolm`; a folder that is never there for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kolm"
    except RuntimeError:
        return _NOWHERE


def cache_folder() -> Path:
    """KOLM_KERNEL_CACHE where it is set, else beside the modules, else in the user's cache. Where none of these can be
    written to: one for this process and those that it starts, gone with it.
    """
    configured = os.environ.get(CACHE)
    if configured:
        return Path(configured)
    beside, users = _HERE / "__pycache__", user_cache() / "kernels"
    if os.access(beside if beside.exists() else _HERE, os.W_OK):
        return beside / "kernels"
    return users if is_writable(users) else _passing(users)


def loading_folder() -> Path:
    """KOLM_LOADING where it is set, as `kolm up` does for its services, else a folder in that of compiled code: then
    auditors let every server go first that shares its kernels.
    """
    configured = os.environ.get(LOADING)
    return Path(configured) if configured else cache_folder() / "loading"


def is_writable(folder: Path) -> bool:
    """Whether files can be made there; makes the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _passing(users: Path) -> Path:
    folder = os.environ[CACHE] = tempfile.mkdtemp(prefix="kolm-kernels-")  # nobody else may write there: it is run
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _log.warning("%s cannot be written to: every start compiles anew; set %s to a folder that stays", users, CACHE)
    return Path(folder)


_loaded: list[Any] = []  # execution engines, so that their code stays


def module_names(storages: Sequence[str], cached: str, arithmetic: str = "float32") -> list[str]:
    """The modules that a model needs with weights in these storages, keys and values `cached` so, and linear layers in
    this arithmetic.
    """
    names = sorted({packed_as(name).name for name in storages})
    embeddings, layers = ([f"embed_{name}" for name in names], [linear_module(name, arithmetic) for name in names])
    return ["rows", f"cache_{cached}", *layers, *embeddings]


def linear_module(storage: str, arithmetic: str) -> str:
    """The module of linear layers with weights in a storage; plain numbers have no other arithmetic than float32."""
    return f"integer_{storage}" if arithmetic == "int8" and STORAGES[storage].quantised else f"linear_{storage}"


@cache
def kernels(module: str) -> dict[str, int]:
    """Addresses of a module's kernels by name, compiled first where no earlier start has left them.

    Raises:
        TargetError: this CPU lacks fused multiply-add.
    """
    machine = this_machine()
    path = _object_path(machine, module)
    if (code := _kept(path)) is None:
        code = object_code(machine, module)
        _keep(path, code)
    _initialise()
    team.add_symbols()
    target = _target_machine(machine, jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _loaded.append((engine, target))
    return {name: engine.get_function_address(name) for name in exports(module)}


def exports(module: str) -> tuple[str, ...]:
    """Names of a module's kernels."""
    return _EXPORTS[module.partition("_")[0]]


_EXPORTS = {
    "rows": (*row_operations.KERNELS, *experts.KERNELS, *delta.KERNELS, "run_team", "member", "set_float_mode"),
    "cache": ("rotate", "attend", "combine", "move", "move_lines", "convolve", "fold_inputs"),
    "linear": ("linear",),
    "integer": ("linear",),
    "embed": ("embed",),
}


def kernels_are_compiled() -> bool:
    """Whether an earlier start has left this version's kernels: those that every model needs, whatever its storages.

    Raises:
        TargetError: this CPU lacks fused multiply-add.
    """
    return _kept(_object_path(this_machine(), "rows")) is not None


def compile_ahead(modules: Sequence[str]) -> None:
    """Compile what is missing, in as many processes as there are CPUs."""
    machine = this_machine()
    if all(_kept(_object_path(machine, module)) for module in modules):
        return
    with one_at_a_time(cache_folder()):  # a server and its auditor start together
        missing = [module for module in modules if not _kept(_object_path(machine, module))]
        if missing and not is_writable(cache_folder()):
            raise TargetError(f"{CACHE}: cannot write in {cache_folder()}, and kernels have to be compiled")
        if missing:
            many = "a kernel" if len(missing) == 1 else f"{len(missing)} kernels"
            _log.info("compiling %s for %s, once for this version", many, machine.name)
        shares = [share for first in range(_PROCESSES) if (share := missing[first::_PROCESSES])]
        done = itertools.count(1)
        with ThreadPoolExecutor(_PROCESSES) as pool:
            list(pool.map(partial(_compile_apart, machine, lambda: f"{next(done)} of {len(missing)}"), shares))


_PROCESSES = os.cpu_count() or 1


def _compile_apart(machine: Machine, number: Callable[[], str], modules: Sequence[str]) -> None:
    """Compiles in another process. A kernel that it could not compile is compiled, or fails, where it is needed."""
    command = [sys.executable, "-m", __name__, machine.name, *modules]
    with subprocess.Popen(command, cwd=_HERE.parents[3], stdout=subprocess.PIPE, text=True) as process:
        for module in process.stdout or ():
            _log.info("compiled %s kernels: %s", number(), module.strip())


def object_code(machine: Machine, module: str) -> bytes:
    """The machine code of a module, for this or another kind of CPU."""
    _initialise()
    target = _target_machine(machine, jit=machine.triple.startswith(_architecture()))
    return bytes(target.emit_object(_optimised(machine, module, target)))


def _optimised(machine: Machine, module: str, target: Any) -> Any:
    parsed = llvm.parse_assembly(str(_ir(machine, module)))
    parsed.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    # Loops are written as they shall run; an unrolled or vectorised one spills registers.
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_interleaving = options.loop_unrolling = False
    passes = llvm.create_pass_builder(target, options)
    passes.getModulePassManager().run(parsed, passes)
    return parsed


def _ir(machine: Machine, name: str) -> ir.Module:
    module = ir.Module(name)
    module.triple = machine.triple
    kind, _, rest = name.partition("_")
    if kind == "linear":
        linear.build(module, machine, STORAGES[rest])
    elif kind == "integer":
        integer.build(module, machine, STORAGES[rest])
    elif kind == "embed":
        linear.build_embedding(module, machine, STORAGES[rest])
    elif kind == "cache":
        form = FORMS[rest]
        rotation.build(module, machine, form)
        attend.build(module, machine, form)
        build_move(module, machine, form, "move")
        build_move(module, machine, form.lines, "move_lines")
        convolution.build(module, machine, form.lines)
        delta.build_inputs(module, machine, form.lines)
    else:
        row_operations.build(module, machine)
        experts.build(module, machine)
        delta.build(module, machine)
        team.build(module, machine)
    return module


def _target_machine(machine: Machine, jit: bool) -> Any:
    target = llvm.Target.from_triple(machine.triple)
    return target.create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=3, jit=jit, reloc="default" if jit else "pic"
    )


@cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _architecture() -> str:
    return str(llvm.get_process_triple()).partition("-")[0]


@cache
def version() -> str:
    """The version of the kernels' sources and of LLVM, and what they know of the CPU: another one is compiled anew."""
    files = [*sorted(_HERE.rglob("*.py")), *(_HERE.parent / f"{name}.py" for name in ("blocks", "rows", "sizes"))]
    sources = b"".join(path.read_bytes() for path in files)
    return hashlib.sha256(sources + repr((llvm.llvm_version_info, looks_ahead())).encode()).hexdigest()[:16]


def _object_path(machine: Machine, module: str) -> Path:
    return cache_folder() / f"{module}-{machine.name}-{version()}.o"


def _kept(path: Path) -> bytes | None:
    """The code in a file; None if it is missing, or has other bytes than were written under this name."""
    try:
        digest, code = path.read_bytes().split(b"\n", 1)
    except (OSError, ValueError):
        return None
    if digest == _digest(path, code):
        return code
    _log.warning("%s is damaged: it is compiled anew", path)
    return None


def _digest(path: Path, code: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + b"\n" + code).hexdigest().encode()


def _keep(path: Path, code: bytes) -> None:
    """Behind a line with the digest of name and code."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_bytes(_digest(path, code) + b"\n" + code)
    beside.replace(path)


def call(address: int, *arguments: int) -> None:
    """Call a kernel of integers and addresses."""
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(arguments))(address)(*arguments)


if __name__ == "__main__":
    _machine = MACHINES[sys.argv[1]]
    for _module in sys.argv[2:]:
        if not _kept(_object_path(_machine, _module)):
            _keep(_object_path(_machine, _module), object_code(_machine, _module))
        print(_module, flush=True)
