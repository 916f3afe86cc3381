"""What holds for every test: examples get time, for a machine may be busy, and kernels compile on first use."""

from __future__ import annotations

import os

from hypothesis import settings

# One thread for torch here and in the services that tests start: tiny products gain nothing from a second one, and on
# a busy machine it is waited for.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("kolm", deadline=None)
settings.load_profile("kolm")
