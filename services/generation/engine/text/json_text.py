"""JSON that a caller writes as text: a schema, the arguments of a call."""

from __future__ import annotations

import json
from typing import Any

_MOST_DIGITS = 308  # of whole numbers that a float64 reaches


def read_json(text: str) -> Any:
    """Raises ValueError, also for values that Python alone reads: NaN, numbers beyond float64, lone surrogates."""
    try:
        value = json.loads(text, parse_int=_whole)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise ValueError("nested too deep") from None
    return value


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits, at most {_MOST_DIGITS} are taken")
    return int(digits)
