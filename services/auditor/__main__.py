"""`python -m services.auditor --data-dir DIR --model DIR [--ledger …]`: checks the settings, then imports the rest."""

from __future__ import annotations

import sys

from services.auditor.settings import AuditorSettings
from services.runtime.process import run_service


async def main(settings: AuditorSettings) -> None:
    """See `services.auditor.serving`."""
    from services.auditor.serving import main

    await main(settings)


if __name__ == "__main__":
    sys.exit(run_service(AuditorSettings, main))
