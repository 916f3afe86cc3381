"""From the layouts that others publish heads in to kolm's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from services.cli.failures.exits import UsageError
from services.cli.terminal.output import talk
from services.generation.drafting.eagle3.checkpoint import write_head
from services.generation.drafting.eagle3.head_pass import Head
from services.generation.drafting.eagle3.loading import confirm_layers, load_head, with_layers
from services.generation.drafting.heads import HeadError, check_base
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.config.config import read_config
from services.generation.target.cpu import load_target
from services.generation.target.errors import TargetError
from services.runtime.process import reason

_PROBE_TOKENS = 512
_PROBE = """The server writes a receipt for every request. A reader who doubts one looks it up and checks the signature.

def total(prices, discount):
    \"\"\"The sum of all prices after the discount.\"\"\"
    return sum(prices) * (1 - discount)
"""


@dataclass(frozen=True, slots=True)
class Converted:
    """A head that was written in kolm's layout, whose layout it had, and the layers that it reads."""

    origin: str
    feature_layers: tuple[int, ...]


def convert(source: Path, out: Path, model: Path, feature_layers: tuple[int, ...] | None) -> Converted:
    """Weights become float32, which holds every value of the other formats exactly.

    If the layout leaves open which layers the head reads, both choices are tried on the base: the one under which the
    head predicts more of the base's tokens is kept. Raises UsageError.
    """
    try:
        base = read_config(model)
        head = load_head(source, base)
        if feature_layers is not None:
            head = with_layers(head, feature_layers)
            check_base(head.config, base)
        elif head.other_layers:
            head = _confirmed(head, model)
        own = np.arange(head.config.draft_vocab_size, dtype=np.int64)
        tensors = {**head.tensors, "d2t": head.target_ids - own}
        write_head(out, head.config, {name: torch.from_numpy(values) for name, values in tensors.items()})
    except (HeadError, TargetError, OSError) as error:
        raise UsageError(reason(error)) from error
    return Converted(head.origin, tuple(head.config.feature_layers))


def _confirmed(head: Head, model: Path) -> Head:
    target = load_target(model, cache_tokens=_PROBE_TOKENS)
    with talk().status("trying which layers of the base the head reads"):
        return confirm_layers(head, target, Tokenizer(model).encode(_PROBE)[: _PROBE_TOKENS // 4])
