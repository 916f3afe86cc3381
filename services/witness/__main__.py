"""`python -m services.witness --data-dir DIR --logs FILE [--listen HOST:PORT]`: the composition root of the witness."""

from __future__ import annotations

import sys
import time

from prometheus_client import CollectorRegistry

from ledger.durable_file import keep_durably
from ledger.errors import FormatError, LedgerError
from ledger.keys.note import COSIGNATURE, VerifierKey
from ledger.keys.signer import open_signer
from ledger.witness.witness import Witness
from services.runtime.http.serving import serve_http
from services.runtime.process import CannotStart, run_service
from services.witness.app import SqliteWitnessMemory, watch, witness_app
from services.witness.settings import WitnessSettings


async def main(settings: WitnessSettings) -> None:
    """Open the witness and serve until a signal. Raises CannotStart."""
    try:
        key = open_signer(settings.witness_key, "witness", settings.key_passphrase_file, create=True)
        own = VerifierKey(settings.name, key.public, COSIGNATURE)
        logs, memory = _logs(settings), SqliteWitnessMemory(settings.memory)
        witness = Witness(settings.name, key, logs, memory, time.time)
        keep_durably(settings.public_file, f"{own.to_text()}\n".encode(), mode=0o644)
    except (LedgerError, OSError) as error:
        raise CannotStart(f"cannot open the witness in {settings.data_dir}: {error}") from error
    registry = CollectorRegistry()
    watch(registry, memory, {log.name for log in logs})
    await serve_http("witness", witness_app(witness, own), settings, registry=registry)


def _logs(settings: WitnessSettings) -> tuple[VerifierKey, ...]:
    """The keys of the logs to watch. Raises CannotStart if the file has none or is invalid, OSError."""
    try:
        lines = (line.strip() for line in settings.logs.read_text(encoding="utf-8").splitlines())
        logs = tuple(VerifierKey.from_text(line) for line in lines if line and not line.startswith("#"))
    except (FormatError, UnicodeDecodeError) as error:
        raise CannotStart(f"--logs: {settings.logs}: {error}; expected a verifier key on each line") from error
    if not logs:
        raise CannotStart(f"--logs: {settings.logs} names no log; expected a verifier key on each line")
    return logs


if __name__ == "__main__":
    sys.exit(run_service(WitnessSettings, main))
