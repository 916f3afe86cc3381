"""The publisher's key of this machine, made at first use, and its public half, which others have to trust."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ledger.keys.signer import Signer, is_device, open_signer
from services.cli.failures.exits import UsageError
from services.cli.terminal.output import talk
from services.client.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Publisher:
    """A publisher's key; `public` is the file with its public half."""

    key: Signer
    public: Path

    @classmethod
    def load(cls, path: Path, trusted: Path, role: str = "publisher", passphrase_file: Path | None = None) -> Publisher:
        """The key at `path`, created if it is missing; its public half goes to the trusted keys of this machine.

        Without such a directory it goes beside the key. Raises KeyFileError.
        """
        is_new = not (is_device(path) or path.exists())
        key = open_signer(path, role, passphrase_file, create=True)
        public = key.publish(trusted if trusted.is_dir() else Path() if is_device(path) else path.parent)
        if is_new:
            talk().print(
                f"made {'an' if role == 'operator' else 'a'} {role}'s key, {path}; others need {public} to trust it",
                soft_wrap=True,
            )
        return cls(key, public)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Turns the refusal of an unknown key into UsageError, which says who has to trust the key."""
        try:
            yield
        except InvalidArgument as error:
            if error.reason != "UNTRUSTED_SIGNATURE":
                raise
            raise UsageError(
                error.message,
                f"have {self.public} added to the trusted keys of the registry and the ledger (`kolm trust add`); "
                "where they run and trust a publisher already, start them again",
            ) from error
