"""The main job on a real model, its head and datastore, and a small model for tests."""

import os

FAULT = "fault"
"""The file in the state folder of `demo.faulty_server` that switches its fault on."""

_KEPT = ("KOLM_MODELS", "KOLM_KERNEL_CACHE", "KOLM_INSTRUCTION_SET")


def forget_variables() -> None:
    """Remove the process's addresses, tokens and settings of other services; variables of the machine stay."""
    for name in [name for name in os.environ if name.startswith("KOLM_") and name not in _KEPT]:
        del os.environ[name]
