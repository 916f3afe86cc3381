"""Certificates on disk for tests: an authority, and pairs that it signed."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from services.cli.init import Authority, Pair
from services.client.identity import ClientTls
from services.runtime.listening import ServerTls

HOSTS = ("localhost", "127.0.0.1")


class Certificates:
    """A folder with the authority of `ca.pem`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority.create(datetime.now(UTC))
        folder.mkdir(parents=True, exist_ok=True)
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self.authority.pair().certificate)

    def server(self, name: str = "server", *, mutual: bool = False) -> ServerTls:
        """A server's files; written again, by renaming, where they are there."""
        return ServerTls(*self._written(name, HOSTS), self.ca if mutual else None)

    def client(self, name: str = "client") -> ClientTls:
        return ClientTls(self.ca, *self._written(name, ()))

    def _written(self, name: str, hosts: tuple[str, ...]) -> tuple[Path, Path]:
        pair: Pair = self.authority.issue(name, hosts, datetime.now(UTC), days=2)
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        for path, data in ((key, pair.key), (certificate, pair.certificate)):
            fresh = path.with_suffix(".new")
            fresh.write_bytes(data)
            os.replace(fresh, path)
        return certificate, key
