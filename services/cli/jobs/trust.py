"""The public keys that a person at the command line trusts."""

from __future__ import annotations

from pathlib import Path

from ledger.keys.trusted_keys import TrustedKeys
from services.cli.exits import UsageError


def trusted_directory(trusted: Path | None, data_dir: Path) -> Path:
    """Where the keys are looked for."""
    return trusted or data_dir / "trusted"


def load_trusted(directory: Path) -> TrustedKeys:
    """Raises UsageError where there is no directory of keys, KeyFileError for a file that is no key."""
    if not directory.is_dir():
        raise UsageError(
            f"no trusted keys: {directory} is not a directory",
            "name one with --trusted, or the --data-dir of `kolm up`",
        )
    return TrustedKeys.load(directory)
