"""Results of the probe, kept on disk: a second start with the same model, code and CPU need not probe again."""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from ledger.encoding.cid import cid_of_json
from services.generation.durable_file import write_durably
from services.generation.target.canonical.kernels.cache_folder import user_cache
from services.generation.target.canonical.kernels.machine import cpus, this_machine
from services.generation.target.one_at_a_time import one_at_a_time
from services.generation.target.probing.probe import ProbeReport
from services.generation.target.target import Target

_log = logging.getLogger(__name__)
_PACKAGE = Path(__file__).parents[1]


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/kolm/probes`, or under `~/.cache`."""
    return user_cache() / "probes"


class KeptProbes:
    """Reports of probes that passed. A folder that cannot be read or written is none.

    Write access to the folder is enough to make a start skip its probe; receipts are not less checkable for it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or default_folder()

    def probing(self) -> AbstractContextManager[None]:
        """In this block no other process of this machine probes."""
        return one_at_a_time(self._folder)

    def find(self, target: Target) -> ProbeReport | None:
        try:
            found = json.loads(self._path(target).read_bytes())
            return ProbeReport(int(found["compared"]), (), str(found["fingerprint"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, target: Target, report: ProbeReport) -> None:
        if not report.passed:
            return
        path = self._path(target)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            document = {"compared": report.compared, "fingerprint": report.fingerprint}
            write_durably(path, json.dumps(document).encode())
        except OSError as error:
            _log.warning("cannot keep the probe's result in %s: %s", path, error)

    def _path(self, target: Target) -> Path:
        return self._folder / f"{cid_of_json(_circumstances(target)).rpartition(':')[2]}.json"


def _circumstances(target: Target) -> dict[str, Any]:
    """All that the outcome of a probe can depend on."""
    return {
        "base": target.base_cid,
        "adapters": [adapter.cid for adapter in target.adapters],
        "context_length": target.config.context_length,
        "target": type(target).__qualname__,
        "numerics": dict(target.numerics),
        "code": code_version(),
        "machine": machine_described(),
        "ranks": getattr(target, "machines", ()),  # of a model that several share
    }


def machine_described() -> str:
    """This one's CPU, as far as kernels and the number of threads depend on it."""
    features = llvm.get_host_cpu_features().flatten()
    return " ".join((this_machine().name, llvm.get_host_cpu_name(), str(cpus()), features))


@cache
def code_version() -> str:
    """Digest of the code that computes passes."""
    sources = b"".join(path.read_bytes() for path in sorted(_PACKAGE.rglob("*.py")))
    return hashlib.sha256(sources + repr(llvm.llvm_version_info).encode()).hexdigest()
