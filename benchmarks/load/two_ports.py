"""The generation service with a second port, under mutual TLS: one process, one model, one engine behind both."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import grpc

from services.cli.init import InitialFolder
from services.generation.__main__ import main
from services.generation.settings import GenerationSettings
from services.runtime import server as runtime
from services.runtime.listening import ServerTls
from services.runtime.process import run_service

CERTIFICATES = "KOLM_BENCHMARK_CERTIFICATES"
"""The folder of `kolm init` whose certificates the second port has."""

_bind = runtime._bind


def secure_address(certificates: Path) -> Path:
    """The file with the second port's address, once the first one answers."""
    return certificates / "secure.address"


def _bind_both(server: grpc.aio.Server, listen: str, tls: ServerTls | None) -> int:
    keys = InitialFolder(Path(os.environ[CERTIFICATES]))
    mutual = ServerTls(keys.certificate("generation"), keys.key("generation"), keys.authority)
    secure_address(keys.path).write_text(f"https://127.0.0.1:{_bind(server, '127.0.0.1:0', mutual)}")
    return _bind(server, listen, tls)


if __name__ == "__main__":
    runtime._bind = _bind_both
    sys.exit(run_service(GenerationSettings, main))
