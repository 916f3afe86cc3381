"""Who publishes from this machine: a key, made at first use, and the public half that others have to trust."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ledger.keys.ed25519 import SigningKey
from services.cli.exits import UsageError
from services.cli.output import talk
from services.client.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Publisher:
    """A publisher's key; `public` is the file with its public half."""

    key: SigningKey
    public: Path

    @classmethod
    def load(cls, path: Path, trusted: Path) -> Publisher:
        """The key at `path`, made where there is none. Its public half goes where registry and ledger of this machine
        look, or, where they are elsewhere, beside it. Raises KeyFileError.
        """
        is_new = not path.exists()
        key = SigningKey.load_or_create(path, "publisher")
        public = key.publish(trusted if trusted.is_dir() else path.parent)
        if is_new:
            talk().print(f"made a publisher's key, {path}; who is to trust it needs {public}", soft_wrap=True)
        return cls(key, public)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """A server that does not know the key is one that nobody has told; raises UsageError, which says whom to."""
        try:
            yield
        except InvalidArgument as error:
            if error.reason != "UNTRUSTED_SIGNATURE":
                raise
            raise UsageError(
                error.message,
                f"whoever runs registry and ledger has to put {self.public} into their directories of trusted keys",
            ) from error
