"""A rank beside rank 0 on its host: `python -m services.generation.ranks.worker`, which rank 0 starts.

Rank 0 tells it on standard input what to load, and holds that open: at its end, however rank 0 came to it, this process
ends too. It takes no signal to stop from elsewhere, for rank 0 first lets running requests end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from services.generation.ranks.work import Work
from services.runtime.logs import configure_logging


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    work = Work.of_line(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_rank_0, daemon=True).start()
    configure_logging(work.log_level, work.log_format, f"generation rank {work.rank}")
    from services.generation.ranks.following import follow_in_folder  # torch: seconds

    return follow_in_folder(work)


def _end_with_rank_0() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
