"""Parameters of a training run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from services.generation.drafting.eagle3.config import HeadConfig
from services.generation.drafting.eagle3.head import Head
from services.generation.drafting.eagle3.loading import load_head
from services.generation.target.config.config import TargetConfig, rope_parameters
from services.training.budget import Budget
from services.training.plan import DataPlan, HeadSizes, LessonPlan, Plan
from services.training.training_error import PromptsInvalid, SettingsInvalid
from services.training.work_folder import check_out, digest_of

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_RESIZED = "draft_vocab_size"


@dataclass(frozen=True, slots=True)
class Job:
    """Train a head for `base` on its answers to `prompts`, and write it to `out`."""

    base: Path
    prompts: tuple[Path, ...]
    out: Path
    work: Path  # answers, recordings, checkpoint and the latest head; the same job in it goes on
    budget: Budget
    data: DataPlan = field(default_factory=DataPlan)
    lesson: LessonPlan = field(default_factory=LessonPlan)
    sizes: dict[str, Any] | None = None  # members of HeadSizes, in place of those that follow from the base
    start_from: Path | None = None  # a head to go on from; its shape stays, but for the size of its draft vocabulary
    answering_minutes: float | None = None  # of answering at most; prompts without an answer by then are left out
    recompute: bool = False  # compute features anew in every epoch instead of keeping them on disk
    save_minutes: float = 5.0
    dtype: str = "bfloat16"  # of the weights as they are written
    k: int = 4  # depth of the chains of the evaluation

    def check(self, devices: int) -> None:
        """Check what needs nothing loaded. Raises TrainingError."""
        check_out(self.out)
        self.data.check()
        self.lesson.check(devices)
        if not self.prompts:
            raise PromptsInvalid("prompts: none were given; expected at least one file of JSON lines")
        missing = [str(path) for path in self.prompts if not path.is_file()]
        if missing:
            raise PromptsInvalid(f"{', '.join(missing)}: no such file; expected JSON lines with prompt or messages")
        if self.dtype not in DTYPES:
            raise SettingsInvalid(f"dtype: {self.dtype!r}; expected one of {', '.join(DTYPES)}")
        if self.start_from is not None and set(self.sizes or {}) - {_RESIZED}:
            raise SettingsInvalid(
                f"a head that goes on from another keeps its shape, all but {_RESIZED}: give other sizes or start_from"
            )

    def known(self, base: TargetConfig) -> Head | None:
        """The head to go on from. Raises HeadError, or SettingsInvalid where this training has no such layers."""
        if self.start_from is None:
            return None
        known = load_head(self.start_from, base)
        sizes = HeadSizes.of(known.config)
        ours = sizes.config(base, known.config.rope, known.config.trained_length)
        if known.config != ours:
            raise SettingsInvalid(f"{self.start_from}: has biases, norms or layers that heads trained here do not have")
        return known

    def plan(self, base: TargetConfig, base_cid: str, known: Head | None) -> Plan:
        chosen = {name: size for name, size in (self.sizes or {}).items() if size is not None}
        if known is None:
            sizes = HeadSizes.for_base(base, **chosen)
        else:
            sizes = replace(HeadSizes.of(known.config), **chosen)
        before = None if self.start_from is None else digest_of(sorted(self.start_from.glob("*.safetensors")))
        return Plan(base_cid, digest_of(self.prompts), sizes, self.data, self.lesson, before)

    def config(self, base: TargetConfig, plan: Plan, known: Head | None) -> HeadConfig:
        """Raises HeadError for sizes that do not fit."""
        if known is not None:
            config = replace(known.config, draft_vocab_size=plan.sizes.draft_vocab_size)
            config.check()
            return config
        rope = rope_parameters(self.base)
        longest = min(self.data.longest_prompt + self.data.max_tokens, base.context_length)
        return plan.sizes.config(base, rope, longest)
