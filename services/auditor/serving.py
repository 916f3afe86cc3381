"""The composition root of the auditor."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from prometheus_client import CollectorRegistry

from ledger.errors import LedgerError
from services.auditor.announcement import Terms
from services.auditor.assembly import AuditorPlan, connected
from services.auditor.audit_error import AuditError
from services.auditor.audit_loop import follow
from services.auditor.auditor import Auditor
from services.auditor.auditor_metrics import AuditorMetrics
from services.auditor.low_priority import yield_to_others
from services.auditor.settings import AuditorSettings
from services.client.errors import KolmError
from services.runtime.lifecycle import serve
from services.runtime.process import CannotStart


async def main(settings: AuditorSettings) -> None:
    """Audit on a thread of its own and serve health beside it, until a signal or until one of the two fails."""
    stop = threading.Event()
    try:
        with connected(plan(settings), stop) as auditor:
            auditing, serving = _start(auditor, settings, stop)
            await asyncio.wait({auditing, serving}, return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():  # auditing has failed: there is nothing left to serve
                serving.cancel()
            stop.set()
        # The connections are closed: a replay that was running has ended, without a verdict.
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        await auditing
    except (LedgerError, OSError, AuditError, KolmError) as error:
        raise CannotStart(f"the auditor cannot go on: {error}") from error


def plan(settings: AuditorSettings) -> AuditorPlan:
    """The plan of an auditor, from its settings."""
    return AuditorPlan(
        ledger=settings.ledger,
        engine=settings.engine,
        decode_share=settings.decode_share,
        key_file=settings.auditor_key,
        key_passphrase_file=settings.key_passphrase_file,
        trusted_directory=settings.trusted_directory,
        public_directory=settings.public_directory,
        database=settings.schedule_url,
        terms=Terms(settings.rate, settings.within_seconds),
        draw_seconds=settings.draw_seconds,
        lease_seconds=settings.lease_seconds,
        max_attempts=settings.max_attempts,
    )


def _start(
    auditor: Auditor, settings: AuditorSettings, stop: threading.Event
) -> tuple[asyncio.Future[None], asyncio.Future[None]]:
    registry = CollectorRegistry()
    metrics = AuditorMetrics(registry)

    def audit() -> None:
        yield_to_others()
        follow(auditor, stop, settings.poll_seconds, metrics.examined, metrics.read)

    auditing = asyncio.to_thread(audit)
    serving = serve("auditor", [], settings, registry=registry, on_drain=stop.set)
    return asyncio.ensure_future(auditing), asyncio.ensure_future(serving)
