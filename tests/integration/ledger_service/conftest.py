from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from services.client.ledger.ledger import LedgerClient
from services.ledger.settings import LedgerSettings
from services.runtime.access import Access
from services.runtime.credentials import write_principals
from tests.access import token_of, without_credential
from tests.integration.ledger_service.liar import ledger_settings
from tests.integration.ledger_service.serving_ledger import serving_ledger
from tests.serving import Served

Serve = Callable[[], AbstractContextManager[Served]]


@pytest.fixture
def settings(tmp_path: Path) -> LedgerSettings:
    return ledger_settings(tmp_path)


@pytest.fixture
def principals(tmp_path: Path) -> Path:
    """Callers on this machine append and read; others have tokens."""
    file = tmp_path / "principals.json"
    write_principals(file, [without_credential("append", "read")])
    return file


@pytest.fixture
def auditor_token(principals: Path) -> str:
    return token_of(principals, "append", "audit")


@pytest.fixture
def operator_token(principals: Path) -> str:
    return token_of(principals, "operate", "read")


@pytest.fixture
def serve(settings: LedgerSettings, principals: Path) -> Serve:
    """Serves the ledger of `settings`; again and again, as restarts of one process would."""

    @contextmanager
    def served() -> Iterator[Served]:
        with serving_ledger(settings, Access(principals)) as (running, _):
            yield running

    return served


@pytest.fixture
def served(serve: Serve) -> Iterator[Served]:
    with serve() as running:
        yield running


@pytest.fixture
def ledger(served: Served) -> Iterator[LedgerClient]:
    with LedgerClient.connect(served.address, wait=60) as client:
        yield client


@pytest.fixture
def auditor(served: Served, auditor_token: str) -> Iterator[LedgerClient]:
    with LedgerClient.connect(served.address, wait=60, token=auditor_token) as client:
        yield client


@pytest.fixture
def operator(served: Served, operator_token: str) -> Iterator[LedgerClient]:
    with LedgerClient.connect(served.address, wait=60, token=operator_token) as client:
        yield client
