"""Machine code of kernels: compiled once for a machine, cached on disk as object code, loaded in milliseconds."""

from __future__ import annotations

import atexit
import ctypes
import gc
import hashlib
import itertools
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import llvmlite.binding as llvm
from llvmlite import ir

from services.generation.state_folder import LOADING, one_at_a_time
from services.generation.target.errors import TargetError
from services.generation.target.kernels import convolution, delta, experts, packing, row_operations, team_loop
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
_PROCESSES = os.cpu_count() or 1
_EXPORTS = {
    "rows": (*row_operations.KERNELS, *experts.KERNELS, *delta.KERNELS, "run_team", "member", "set_float_mode"),
    "cache": ("rotate", "attend", "combine", "move", "move_lines", "convolve", "fold_inputs"),
    "linear": ("linear",),
    "integer": ("linear",),
    "embed": ("embed",),
    "pack": ("pack",),
}
_loaded: list[Any] = []  # execution engines, which own the code
_ONE_THREAD = threading.RLock()  # a module is compiled, written and loaded once


def user_cache() -> Path:
    """`$XDG_CACHE_HOME/kolm`, by default `~/.cache/kolm`, or a folder that does not exist for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kolm"
    except RuntimeError:
        return _NOWHERE


def cache_folder() -> Path:
    """The folder of compiled code: KOLM_KERNEL_CACHE, else next to the modules, else in the user's cache. If none of
    these is writable, a temporary folder for this process and its children.
    """
    configured = os.environ.get(CACHE)
    if configured:
        return Path(configured)
    own, users = _HERE / "__pycache__", user_cache() / "kernels"
    if os.access(own if own.exists() else _HERE, os.W_OK):
        return own / "kernels"
    return users if make_writable(users) else _temporary(users)


def loading_folder() -> Path:
    """KOLM_LOADING, which `kolm up` sets for its services, else a folder in the cache: then auditors let servers that
    share their kernels load first.
    """
    configured = os.environ.get(LOADING)
    return Path(configured) if configured else cache_folder() / "loading"


def make_writable(folder: Path) -> bool:
    """Make the folder; return whether it is writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _temporary(users: Path) -> Path:
    folder = os.environ[CACHE] = tempfile.mkdtemp(prefix="kolm-kernels-")  # mode 0700: its content is executed
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _log.warning(
        "cannot write to %s: kernels are recompiled at every start; set %s to a persistent folder", users, CACHE
    )
    return Path(folder)


def module_names(storages: Sequence[str], cached: str, arithmetic: str = "float32") -> list[str]:
    """The modules that a model needs with weights in these storages, keys and values in the form `cached`, and linear
    layers in this arithmetic.
    """
    names = sorted({packed_as(name).name for name in storages})
    embeddings, layers = ([f"embed_{name}" for name in names], [linear_module(name, arithmetic) for name in names])
    return ["rows", f"cache_{cached}", *layers, *embeddings, *(f"pack_{name}" for name in names)]


def linear_module(storage: str, arithmetic: str) -> str:
    """The module of linear layers with weights in a storage. For plain numbers the arithmetic is always float32."""
    return f"integer_{storage}" if arithmetic == "int8" and STORAGES[storage].quantised else f"linear_{storage}"


def kernels(module: str) -> dict[str, int]:
    """Addresses of a module's kernels by name. They are compiled unless the cache has them, once if several threads
    ask together.

    Raises:
        TargetError: this CPU lacks fused multiply-add.
    """
    with _ONE_THREAD:
        return _kernels(module)


@cache
def _kernels(module: str) -> dict[str, int]:
    machine = this_machine()
    path = _object_path(machine, module)
    if (code := _cached(path)) is None:
        code = object_code(machine, module)
        try:
            _write(path, code)
        except OSError as error:
            _log.warning("cannot keep a compiled kernel, which the next start compiles again: %s", error)
    _initialise()
    team_loop.add_symbols()
    target = _target_machine(machine, jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _loaded.append((engine, target))
    return {name: engine.get_function_address(name) for name in exports(module)}


def exports(module: str) -> tuple[str, ...]:
    """Names of a module's kernels."""
    return _EXPORTS[module.partition("_")[0]]


def kernels_are_compiled() -> bool:
    """Whether this version's kernels are cached: the module "rows", which every model needs.

    Raises:
        TargetError: this CPU lacks fused multiply-add.
    """
    return _cached(_object_path(this_machine(), "rows")) is not None


def compile_ahead(modules: Sequence[str]) -> None:
    """Compile modules that are not cached, in one process for each CPU."""
    machine = this_machine()
    if all(_cached(_object_path(machine, module)) for module in modules):
        return
    with one_at_a_time(cache_folder()):  # a server and its auditor start together
        missing = [module for module in modules if not _cached(_object_path(machine, module))]
        if missing and not make_writable(cache_folder()):
            raise TargetError(f"{CACHE}: cannot write to {cache_folder()}; kernels have to be compiled")
        if missing:
            many = "a module" if len(missing) == 1 else f"{len(missing)} modules"
            _log.info("compiling kernels for %s: %s, once for this version", machine.name, many)
        shares = [share for first in range(_PROCESSES) if (share := missing[first::_PROCESSES])]
        done = itertools.count(1)
        with ThreadPoolExecutor(_PROCESSES) as pool:
            list(pool.map(partial(_compile_apart, machine, lambda: f"{next(done)} of {len(missing)}"), shares))


def try_to_compile(modules: Sequence[str]) -> None:
    """`compile_ahead` without its errors, which a caller that needs the kernels gets."""
    with suppress(TargetError, OSError):
        compile_ahead(modules)


def _compile_apart(machine: Machine, number: Callable[[], str], modules: Sequence[str]) -> None:
    """Compile in another process. If that fails, `kernels` compiles the module or raises."""
    command, folder = [sys.executable, "-m", __name__, machine.name, *modules], _HERE.parents[3]
    environment = os.environ | {CACHE: str(cache_folder().absolute())}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for module in process.stdout or ():
            _log.info("compiled kernels: %s, %s", number(), module.strip())


def object_code(machine: Machine, module: str) -> bytes:
    """The machine code of a module, for this or another kind of CPU."""
    _initialise()
    target = _target_machine(machine, jit=machine.triple.startswith(_architecture()))
    return bytes(target.emit_object(_optimised(machine, module, target)))


def _optimised(machine: Machine, module: str, target: Any) -> Any:
    parsed = llvm.parse_assembly(str(_ir(machine, module)))
    parsed.verify()
    # Loops are already unrolled and vectorised: all passes of LLVM's -O2 take ten times as long, and kernels are no
    # faster.
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(parsed, llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options()))
    return parsed


def _ir(machine: Machine, name: str) -> ir.Module:
    module = ir.Module(name)
    module.triple = machine.triple
    kind, _, rest = name.partition("_")
    if kind == "linear":
        linear.build(module, machine, STORAGES[rest])
    elif kind == "integer":
        integer.build(module, machine, STORAGES[rest])
    elif kind == "pack":
        packing.build(module, machine, STORAGES[rest])
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
        team_loop.build(module, machine)
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
    """A digest of the kernels' sources, LLVM's version and the CPU's properties: the key of compiled code."""
    files = [*sorted(_HERE.rglob("*.py")), *(_HERE.parent / f"{name}.py" for name in ("blocks", "rows", "sizes"))]
    sources = b"".join(path.read_bytes() for path in files)
    return hashlib.sha256(sources + repr((llvm.llvm_version_info, looks_ahead())).encode()).hexdigest()[:16]


def _object_path(machine: Machine, module: str) -> Path:
    return cache_folder() / f"{module}-{machine.name}-{version()}.o"


def _cached(path: Path) -> bytes | None:
    """The code in a file, or None if it is missing or its digest differs."""
    try:
        digest, code = path.read_bytes().split(b"\n", 1)
    except (OSError, ValueError):
        return None
    if digest == _digest(path, code):
        return code
    _log.warning("recompiling a damaged kernel: %s", path)
    return None


def _digest(path: Path, code: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + b"\n" + code).hexdigest().encode()


def _write(path: Path, code: bytes) -> None:
    """Write a line with the digest of name and code, then the code. Raises OSError, and leaves no part of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{uuid4().hex}")
    try:
        temporary.write_bytes(_digest(path, code) + b"\n" + code)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def call(address: int, *arguments: int) -> None:
    """Call a kernel whose arguments are integers and addresses."""
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(arguments))(address)(*arguments)


if __name__ == "__main__":
    gc.disable()  # saves a fifth of the time: hundreds of thousands of instructions stay until a module is written
    _machine = MACHINES[sys.argv[1]]
    for _module in sys.argv[2:]:
        if not _cached(_object_path(_machine, _module)):
            try:
                _write(_object_path(_machine, _module), object_code(_machine, _module))
            except OSError as _error:
                sys.exit(f"cannot keep compiled kernels: {_error}")
        try:
            print(_module, flush=True)
        except BrokenPipeError:  # the process that wanted the modules has ended; an ordinary exit would flush again
            os._exit(1)
