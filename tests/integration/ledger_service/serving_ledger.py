"""A ledger service in this process, on a port of its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from kolm.ledger.v1.ledger_pb2_grpc import add_LedgerServiceServicer_to_server
from services.ledger.__main__ import opened_servicer
from services.ledger.external_signers import ExternalSigners
from services.ledger.servicer import SERVICE, LedgerServicer
from services.ledger.settings import LedgerSettings
from services.runtime.access import Access
from services.runtime.server import Mount
from tests.serving import Served, serving


@contextmanager
def serving_ledger(
    settings: LedgerSettings, access: Access | None = None, outside: ExternalSigners | None = None,
    between: Callable[[LedgerServicer], Any] = lambda servicer: servicer,
) -> Iterator[tuple[Served, Any]]:  # fmt: skip
    """The server and what answers its calls: the servicer, or what `between` makes of it."""
    with opened_servicer(settings, CollectorRegistry(), outside) as servicer:
        answering = between(servicer)
        mount = Mount(SERVICE, lambda server: add_LedgerServiceServicer_to_server(answering, server))
        with serving(mount, on_drain=servicer.close, access=access) as served:
            yield served, answering
