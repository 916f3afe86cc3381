"""Exit codes, and the errors that commands raise themselves.

CommandError
├── Failed              1  it was tried and failed
├── UsageError          2  the command line, or a file it names, is wrong; nothing was tried
├── VerificationFailed  3  something is not as it claims to be
├── Missing             4  the thing asked for is not there
└── Away                5  a service cannot be reached
"""

from __future__ import annotations

OK, FAILED, USAGE, VERIFICATION_FAILED, NOT_FOUND, UNAVAILABLE = 0, 1, 2, 3, 4, 5
INTERRUPTED = 130
"""128 + SIGINT, as a shell reports it."""


class CommandError(Exception):
    """`message` says what went wrong, in one line; `hint` says what to do, if there is something to do."""

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


class Missing(CommandError):
    """The thing asked for is not there."""

    exit_code = NOT_FOUND


class Away(CommandError):
    """A service cannot be reached."""

    exit_code = UNAVAILABLE
