"""A tiny base, a few answers of its own, and heads over them."""

from dataclasses import dataclass
from pathlib import Path

import torch

from services.generation.target.cpu import CpuTarget, load_target
from services.training.answering import Streams, questions, regenerate
from services.training.block import BlockModule
from services.training.head import HeadModule
from services.training.plan import BlockSizes, HeadSizes
from services.training.prompts import Answer, Prompt
from services.training.recordings import Prefill
from services.training.trainer import Ends, frequent_tokens, fresh_block, fresh_head
from services.training.unroll import Teacher

DRAFT_VOCABULARY = 100
LONGEST_ANSWER = 20
ROPE = {"rope_type": "default", "rope_theta": 10000.0}


@dataclass(frozen=True)
class Material:
    """Material for lessons."""

    base: Path
    target: CpuTarget
    streams: Streams
    answers: list[Answer]
    recordings: Prefill
    ends: Ends
    target_ids: torch.Tensor

    def head(self, seed: int = 1) -> HeadModule:
        """A head whose every matrix matters: none of them is zero, unlike a fresh head's."""
        config = self.target.config
        sizes = HeadSizes.for_base(config, draft_vocab_size=len(self.target_ids), feature_layers=(1, 2, 3))
        head = fresh_head(sizes.config(config, ROPE, 128), self.ends, self.target_ids, seed)
        _stir(head, seed)
        return head

    def block(self, seed: int = 1, block_size: int = 4) -> BlockModule:
        """A block head whose every matrix matters."""
        config = self.target.config
        sizes = BlockSizes.for_base(
            config, draft_vocab_size=len(self.target_ids), feature_layers=(1, 2, 3), markov_rank=16
        )
        head = fresh_block(sizes.config(config, ROPE, 128, block_size), self.ends, self.target_ids, seed)
        _stir(head, seed)
        return head

    def teacher(self) -> Teacher:
        return self.ends.teacher(self.target.config.norm_epsilon, self.target_ids)


def _stir(head: torch.nn.Module, seed: int) -> None:
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)


PROMPTS = [
    Prompt(f"p{number:02}", "ab"[number % 2], tuple(range(5 + number, 9 + number + number % 7))) for number in range(24)
]


def material_of(base: Path) -> Material:
    """The same in every process."""
    target = load_target(base, cache_tokens=16_384)
    assert isinstance(target, CpuTarget)
    streams = Streams((1, 2, 3), target.config.hidden_size, target.config.layers)
    asked = questions(PROMPTS, (0.0, 1.0), seed=3)
    answers = sorted((answer for answer, _ in regenerate(target, asked, LONGEST_ANSWER, streams)), key=lambda a: a.id)
    ids = frequent_tokens(answers, DRAFT_VOCABULARY, target.config.vocab_size)
    recordings = Prefill(target, streams, answers)
    return Material(base, target, streams, answers, recordings, Ends.read(base, target.config), ids)
