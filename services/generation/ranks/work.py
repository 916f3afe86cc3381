"""The line by which rank 0 tells a rank on its host what to load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from services.runtime.logs import LogFormat


@dataclass(frozen=True, slots=True)
class Work:
    """The model that a rank loads, and the address where it meets the others."""

    model: str
    rank: int
    ranks: int
    folder: str
    seconds: float
    adapters: Mapping[str, str]
    options: Mapping[str, Any]  # of `load_target`
    log_level: str
    log_format: LogFormat

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> Work:
        return cls(**json.loads(line))
