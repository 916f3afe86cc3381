"""Where machine code is kept, and what else kolm keeps for a user."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from pathlib import Path

CACHE = "KOLM_KERNEL_CACHE"
"""Environment variable: the folder of compiled code."""

_log = logging.getLogger(__name__)
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
