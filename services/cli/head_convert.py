"""From the layouts that others publish heads in to kolm's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from services.cli.exits import UsageError
from services.generation.drafting.eagle3.errors import HeadError
from services.generation.drafting.eagle3.layout import write_head
from services.generation.drafting.eagle3.loading import load_head, with_layers
from services.generation.target.config import read_config
from services.generation.target.errors import TargetError


def convert(source: Path, out: Path, model: Path, feature_layers: tuple[int, ...] | None) -> dict[str, Any]:
    """What was written, for a view. Weights are kept in float32, which holds every value of the others exactly.

    Raises UsageError.
    """
    try:
        base = read_config(model)
        head = load_head(source, base)
        if feature_layers is not None:
            head = with_layers(head, feature_layers)
            head.config.check_base(base)
        own = np.arange(head.config.draft_vocab_size, dtype=np.int64)
        write_head(out, head.config, {**head.tensors, "d2t": torch.from_numpy(head.target_ids - own)})
    except (HeadError, TargetError, OSError) as error:
        raise UsageError(str(error)) from error
    return {
        "origin": head.origin,
        "folder": str(out),
        "feature_layers": list(head.config.feature_layers),
        "draft_vocab_size": head.config.draft_vocab_size,
        "also_possible": [list(layers) for layers in head.other_layers],
    }
