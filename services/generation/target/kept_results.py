"""Results of measurements of a target on this machine, kept between starts."""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from ledger.durable_file import write_durably
from ledger.encoding.text_forms import cid_of_json
from services.generation.state_folder import one_at_a_time
from services.generation.target.config.config import TargetConfig
from services.generation.target.kernels.machine import cpus, this_machine
from services.generation.target.target import Target

_log = logging.getLogger(__name__)

_PACKAGE = Path(__file__).parent


class KeptResults:
    """JSON objects by target, in a folder. Files of other code, machines or weights have other names.

    A folder that cannot be read or written counts as empty.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def lock(self) -> AbstractContextManager[None]:
        """A lock for a measurement, among all processes of this machine."""
        return one_at_a_time(self._folder)

    def find(self, target: Target, threads: int | None = None) -> dict[str, Any] | None:
        """The kept object, measured with the target's own number of threads or another; None if there is none, or if
        its file was damaged.
        """
        threads = threads or target.threads
        try:
            found: dict[str, Any] = json.loads(self._path(target, threads).read_bytes())
            return found if found.pop("digest") == _digest(target, threads, found) else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def keep(self, target: Target, document: dict[str, Any]) -> None:
        path = self._path(target, target.threads)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, json.dumps(document | {"digest": _digest(target, target.threads, document)}).encode())
        except OSError as error:
            _log.warning("cannot write a measurement's result to %s: %s", path, error)

    def _path(self, target: Target, threads: int) -> Path:
        return self._folder / f"{cid_of_json(_context(target, threads)).rpartition(':')[2]}.json"


def _digest(target: Target, threads: int, document: dict[str, Any]) -> str:
    """A digest of a result and its circumstances, so that no other file is mistaken for it."""
    return cid_of_json({"circumstances": _context(target, threads), **document})


def _context(target: Target, threads: int) -> dict[str, Any]:
    """Everything on which a result can depend."""
    return {
        "base": target.base_cid,
        "config": config_digest(target.config),
        "adapters": [adapter.cid for adapter in target.adapters],
        "context_length": target.config.context_length,
        "target": type(target).__qualname__,
        "numerics": dict(target.numerics),
        "code": code_version(),
        "machine": machine_described(),
        "device": target.device,
        "threads": threads,
    }


def machine_described() -> str:
    """The properties of this CPU on which kernels and the number of threads depend."""
    features = llvm.get_host_cpu_features().flatten()
    return " ".join((this_machine().name, llvm.get_host_cpu_name(), str(cpus()), features))


@cache
def config_digest(config: TargetConfig) -> str:
    """Digest of a configuration as it was read, but for the served context: another version of transformers can read
    another one from the same files.
    """
    return hashlib.sha256(repr(replace(config, context_length=0)).encode()).hexdigest()


@cache
def code_version() -> str:
    """Digest of this package's code and of the versions of LLVM, NumPy and gguf."""
    sources = b"".join(path.read_bytes() for path in sorted({*_PACKAGE.rglob("*.py"), *_PACKAGE.rglob("*.cl")}))
    libraries = llvm.llvm_version_info, np.__version__, version("gguf")
    return hashlib.sha256(sources + repr(libraries).encode()).hexdigest()
