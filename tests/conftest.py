"""What holds for every test: examples get time, for a machine may be busy, and kernels compile on first use."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("kolm", deadline=None)
settings.load_profile("kolm")
