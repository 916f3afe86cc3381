"""Ranks tell each other what they were started with: where one differs, all of them end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from services.generation.target.errors import RanksDisagree
from services.generation.target.parallel.link import Link

_BYTES = 1 << 16  # of one rank's message


def said_by_all(link: Link, said: Mapping[str, object]) -> list[dict[str, Any]]:
    """The words of each rank, by rank. Raises RankLost."""
    own = np.zeros(_BYTES, np.uint8)
    text = json.dumps(said).encode()
    assert len(text) <= _BYTES
    own[: len(text)] = np.frombuffer(text, np.uint8)
    everybody = np.zeros((link.share.ranks, _BYTES), np.uint8)
    link.all_gather(own, everybody.reshape(-1))
    return [json.loads(line.tobytes().rstrip(b"\0")) for line in everybody]


def agree(link: Link, said: Mapping[str, object]) -> None:
    """Raises RanksDisagree on all ranks, naming the first that differs from rank 0, and in what; RankLost."""
    first, *others = said_by_all(link, said)
    for rank, other in enumerate(others, 1):
        for name in first | other:
            if other.get(name) != first.get(name):
                raise RanksDisagree(
                    f"tensor parallel: rank {rank} has {name} {other.get(name)}, rank 0 has {first.get(name)}; start "
                    "all ranks with the same version of kolm, model, adapters and options"
                )
