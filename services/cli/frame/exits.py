"""Exit codes, and the errors that commands raise themselves.

CommandError
├── Failed              1  it was tried and failed
├── UsageError          2  the command line, or a file it names, is wrong; nothing was tried
├── VerificationFailed  3  something is not as it claims to be
├── NotFound            4  the thing asked for is not there
└── Unreachable         5  a service cannot be reached
"""

from __future__ import annotations

from pathlib import Path

OK, FAILED, USAGE, VERIFICATION_FAILED, NOT_FOUND, UNAVAILABLE = 0, 1, 2, 3, 4, 5
INTERRUPTED, TERMINATED = 130, 143
"""128 + SIGINT, 128 + SIGTERM, as a shell reports them."""


def brought_by(extra: str) -> str:
    """How to install an extra: from the checkout or from a built wheel, as no package index has kolm's wheels."""
    index = " --extra-index-url https://download.pytorch.org/whl/cpu" if extra == "training" else ""  # not CUDA's build
    root = Path(__file__).resolve().parents[3]
    if (root / "constraints.txt").exists() and (root / "pyproject.toml").exists():
        return f"install it: pip install{index} -c {root}/constraints.txt -e '{root}[{extra}]'"
    return (
        f"install the full wheel with its extra {extra}: `make wheels` in a checkout, then "
        f"pip install{index} 'dist/kolm_serve-….whl[{extra}]'"
    )


class CommandError(Exception):
    """An error that ends a command. `message` is one line about the problem, `hint` a remedy if there is one."""

    exit_code = FAILED

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Failed(CommandError):
    """It was tried and failed."""


class UsageError(CommandError):
    """The command line is wrong, or a file that it names."""

    exit_code = USAGE


class VerificationFailed(CommandError):
    """Something is not as it claims to be."""

    exit_code = VERIFICATION_FAILED


class NotFound(CommandError):
    """The thing asked for is not there."""

    exit_code = NOT_FOUND


class Unreachable(CommandError):
    """A service cannot be reached."""

    exit_code = UNAVAILABLE
