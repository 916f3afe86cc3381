"""A head before its first step: its draft vocabulary, its weights, fresh or known; and the same head as files."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.generation.drafting.eagle3.config import HeadConfig
from services.generation.drafting.eagle3.head import Head
from services.generation.drafting.eagle3.layout import write_head
from services.generation.target.config.config import TargetConfig
from services.generation.target.weights.checkpoint import open_checkpoint
from services.training.answers.answer import Answer
from services.training.head.loss import Teacher
from services.training.head.module import HeadModule

FACTS_FILE = "training.json"


def frequent_tokens(answers: Iterable[Answer], size: int, vocab_size: int, known: Iterable[int] = ()) -> Tensor:
    """The `size` tokens that the target says most often, ascending; among equals `known` ones first, then the lower id.

    Where it has said fewer different ones, others fill up, known ones first.
    """
    counts, kept = Counter(token for answer in answers for token in answer.said), frozenset(known)
    ranked = sorted(range(vocab_size), key=lambda token: (-counts[token], token not in kept, token))
    return torch.tensor(sorted(ranked[:size]))


def coverage(answers: Iterable[Answer], target_ids: Tensor) -> float:
    """Share of what the target said that the head could have drafted."""
    drafted = set(target_ids.tolist())
    said = [token in drafted for answer in answers for token in answer.said]
    return sum(said) / len(said) if said else 0.0


@dataclass(frozen=True, slots=True)
class Ends:
    """Tensors that a head shares with its base: embeddings [vocab_size, hidden], final norm [hidden], output matrix."""

    embeddings: Tensor
    norm: Tensor
    head: Tensor

    @classmethod
    def read(cls, base: Path, config: TargetConfig) -> Ends:
        """From the base's checkpoint, in float32. Raises TargetError."""
        with open_checkpoint(base, config) as checkpoint:
            embeddings = checkpoint.read("model.embed_tokens.weight").clone()
            head = embeddings if config.tied_embeddings else checkpoint.read("lm_head.weight").clone()
            return cls(embeddings, checkpoint.read("model.norm.weight").clone(), head)

    def teacher(self, epsilon: float, target_ids: Tensor) -> Teacher:
        return Teacher(self.norm, self.head, epsilon, target_ids)


def fresh_head(config: HeadConfig, ends: Ends, target_ids: Tensor, seed: int) -> HeadModule:
    """Random matrices; output matrix and norm are the base's, and the layer adds nothing to its input at first."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = HeadModule(config, ends.embeddings)
        for parameter in head.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    with torch.no_grad():
        head.lm_head.weight.copy_(ends.head[target_ids])
        head.norm.weight.copy_(ends.norm)
        head.midlayer.self_attn.o_proj.weight.zero_()
        head.midlayer.mlp.down_proj.weight.zero_()
    return head


def known_head(known: Head, config: HeadConfig, ends: Ends, target_ids: Tensor) -> HeadModule:
    """A head that was trained before, for this base or a former version of it, over another draft vocabulary.

    Tokens that it could not draft until now start with the base's own rows of the output matrix.
    """
    head = HeadModule(config, ends.embeddings)
    rows = ends.head.clone()
    weights = {name: torch.from_numpy(values) for name, values in known.tensors.items()}
    rows[torch.from_numpy(known.target_ids)] = weights["lm_head.weight"].to(rows.dtype)
    head.load_state_dict({**weights, "lm_head.weight": rows[target_ids]})
    return head


def export(folder: Path, head: HeadModule, target_ids: Tensor, dtype: torch.dtype, facts: dict[str, Any]) -> None:
    """Write the head in kolm's layout, and `facts` beside it. Each file is replaced whole."""
    tensors = {name: tensor.detach().to("cpu", dtype) for name, tensor in head.state_dict().items()}
    offsets = target_ids.cpu() - torch.arange(len(target_ids))
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".head-", dir=folder.parent))
    try:
        write_head(staging, head.config, {**tensors, "d2t": offsets})
        (staging / FACTS_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        folder.mkdir(exist_ok=True)
        for file in sorted(staging.iterdir()):
            file.chmod(0o644)
            file.replace(folder / file.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
