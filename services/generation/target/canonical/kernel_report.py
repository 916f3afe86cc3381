"""What the probe of single kernels found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelReport:
    """`compared` outputs, the descriptions of those that differed."""

    compared: int
    failures: tuple[str, ...]
