"""A head as it was loaded: its configuration, its weights, its vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.eagle3.config import HeadConfig

Origin = Literal["kolm", "safeailab", "speculators"]


@dataclass(frozen=True, slots=True)
class Head:
    """Checked against its own config and its base; pure data, `HeadPass` computes with it."""

    origin: Origin
    config: HeadConfig
    tensors: dict[str, NDArray[np.float32]]  # under the names that `head_shapes` lists
    target_ids: NDArray[np.int64]  # [draft_vocab_size] token of the target for each of the head's own
    other_layers: tuple[tuple[int, ...], ...] = ()  # readings of `feature_layers` that the layout leaves possible
