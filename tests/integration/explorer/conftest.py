from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.integration.explorer.browsing import REQUIRED, BrowserMissing, chromium
from tests.integration.explorer.site import Site, running_site


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium for a module: its loop must not outlive that, other tests run loops of their own.

    Skips if the machine has none, unless `browsing.REQUIRED` is set.
    """
    import os

    try:
        with chromium() as running:
            yield running
    except BrowserMissing as error:
        if os.environ.get(REQUIRED):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A ledger with something of everything, and the explorer over it. Tests that lie put the truth back."""
    with running_site(Path(tmp_path_factory.mktemp("explorer"))) as running:
        yield running
