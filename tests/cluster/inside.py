"""A service on a host of `tests.cluster.hosts`: `python -m tests.cluster.inside NAMESPACE LOG MODULE [flags]`."""

import ctypes
import os
import runpy
import sys

_NETWORK = 0x40000000  # CLONE_NEWNET of linux/sched.h

if __name__ == "__main__":
    space, log, *sys.argv = sys.argv[1:]
    with open(f"/run/netns/{space}", "rb") as namespace, open(log, "ab") as errors:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {space}")
        os.dup2(errors.fileno(), 2)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
