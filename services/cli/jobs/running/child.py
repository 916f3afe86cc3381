"""`python -m services.cli.jobs.running.child PARENT MODULE [flags]`: a service that ends when its parent ends.

On Linux the kernel sends it SIGTERM when its parent dies, however it dies; elsewhere it is a plain `python -m MODULE`.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM when `parent` dies; end at once if it has died already."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    module = sys.argv[2]
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
