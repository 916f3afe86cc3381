"""A training run's plan, length, working folder, reports and errors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from ledger.durable_file import write_durably
from services.generation.drafting.block.block_checkpoint import BlockConfig
from services.generation.drafting.eagle3.checkpoint import Head, HeadConfig
from services.generation.drafting.eagle3.loading import load_head
from services.generation.drafting.heads import check_base
from services.generation.target.config.config import TargetConfig, rope_parameters
from services.training.prompts import PromptsInvalid, TrainingError

SECONDS_PER_MINUTE = 60.0
Precision = Literal["bfloat16", "float32"]

_WITHOUT: dict[str, Any] = dict.fromkeys((
    "attention_bias", "output_bias", "mlp_bias", "head_norms", "own_embeddings", "norm_before_residual",
    "norm_before_fc", "fc_norm", "norm_output",
), False)  # fmt: skip
"""Variants of published EAGLE-3 heads; this training uses none of them."""

_MARKOV_RANK = 128
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_RESIZED = "draft_vocab_size"
_MOST_SEED = 2**63 - 1  # a prompt's seed is as much larger as its number; the engine's have 64 bits


class OutputInvalid(TrainingError):
    """The folder to write to is in use, belongs to a run with other settings, or lacks recordings."""


class SettingsInvalid(TrainingError):
    """A setting is out of range, or does not fit this base; the message names it."""


class DiskFull(TrainingError):
    """There is no room for answers or recorded features; nothing that was recorded before is lost."""


class Budget(Protocol):
    """The length of a run. `fraction` is the share that is over after `steps` steps and `seconds` of training."""

    def fraction(self, steps: int, seconds: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Steps:
    """A run of a fixed number of steps; reproducible to the bit."""

    total: int

    def fraction(self, steps: int, seconds: float) -> float:
        return steps / self.total


@dataclass(frozen=True, slots=True)
class Minutes:
    """A run of `total` minutes on any machine; the learning rate is fully annealed at its end."""

    total: float

    def fraction(self, steps: int, seconds: float) -> float:
        return seconds / (self.total * SECONDS_PER_MINUTE)


def _of_base(base: TargetConfig) -> dict[str, Any]:
    """Members of a head's config.json that are the base's."""
    names = ("hidden_size", "norm_epsilon", "vocab_size")
    return {"target_hidden_size": base.hidden_size} | {name: getattr(base, name) for name in names}


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """Sizes of a head. `for_base` fills in the sizes that the base determines."""

    feature_layers: tuple[int, ...]
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    draft_vocab_size: int

    @classmethod
    def for_base(cls, base: TargetConfig, **chosen: Any) -> HeadSizes:
        """The base's own widths; features after layers 2, n/2 and n-3 of n (EAGLE-3's choice).

        Members in `chosen` that are not None replace these.
        """
        values: dict[str, Any] = {
            "feature_layers": tuple(sorted({min(2, base.layers), base.layers // 2, max(base.layers - 3, 1)})),
            "intermediate_size": base.intermediate_size,
            "heads": base.heads,
            "kv_heads": base.kv_heads,
            "head_dim": base.head_dim,
            "draft_vocab_size": min(base.vocab_size, 32_000),
        }
        return cls(**values | {name: value for name, value in chosen.items() if value is not None})

    @classmethod
    def of(cls, config: HeadConfig) -> HeadSizes:
        return cls(**{each.name: getattr(config, each.name) for each in fields(cls)})

    def config(self, base: TargetConfig, rope: dict[str, Any], trained_length: int) -> HeadConfig:
        """The head's config.json with every member explicit, so that the reader's defaults do not matter."""
        config = HeadConfig(
            **asdict(self), **_of_base(base), layers=1, rope=rope, trained_length=trained_length, **_WITHOUT
        )
        config.check()
        check_base(config, base)
        return config


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """Sizes of a block head. `for_base` fills in the sizes that the base determines."""

    feature_layers: tuple[int, ...]
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    draft_vocab_size: int
    layers: int = 2
    markov_rank: int = _MARKOV_RANK

    @classmethod
    def for_base(cls, base: TargetConfig, **chosen: Any) -> BlockSizes:
        """The base's own widths; features after four layers, evenly spaced from 2 to n-2 of n (DFlash's choice)."""
        of_base = asdict(HeadSizes.for_base(base))
        spread = {2 + round(i * (base.layers - 4) / 3) for i in range(4)} if base.layers > 4 else {1, base.layers - 1}
        of_base |= {"feature_layers": tuple(sorted(spread)), "markov_rank": min(_MARKOV_RANK, base.hidden_size)}
        return cls(**of_base | {name: value for name, value in chosen.items() if value is not None})

    def config(self, base: TargetConfig, rope: dict[str, Any], trained_length: int, block_size: int) -> BlockConfig:
        """The head's config.json. The mask is the vocabulary's last token, which texts hardly have."""
        config = BlockConfig(
            **asdict(self),
            **_of_base(base),
            block_size=block_size,
            mask_token=base.vocab_size - 1,
            from_first=True,
            rope=rope,
            trained_length=trained_length,
            attention_bias=False,
            windows=(0,) * self.layers,
            confidence=True,
            confidence_reads_token=True,
            own_embeddings=False,
            own_output=True,
        )
        config.check()
        check_base(config, base)
        return config


@dataclass(frozen=True, slots=True)
class DataPlan:
    """The answers that the target generates for training and evaluation."""

    temperatures: tuple[float, ...] = (0.0, 0.7, 0.0, 1.0)  # assigned to the prompts in rotation
    max_tokens: int = 256  # of an answer
    longest_prompt: int = 2048  # tokens; longer prompts are left out
    held_out: float = 0.05  # share of the prompts kept for the evaluation
    most_held_out: int = 256  # prompts of the evaluation at most
    seed: int = 0

    def check(self) -> None:
        """Raises SettingsInvalid, naming the setting."""
        if not self.temperatures or any(not 0.0 <= t <= 100.0 for t in self.temperatures):
            raise SettingsInvalid(f"temperatures: {self.temperatures}; expected numbers from 0 to 100")
        if self.max_tokens < 2 or self.longest_prompt < 1:
            raise SettingsInvalid("max_tokens has to be at least 2, longest_prompt at least 1")
        if not 0.0 < self.held_out < 1.0:
            raise SettingsInvalid(f"held_out: {self.held_out}; expected a share between 0 and 1")
        if not 0 <= self.seed <= _MOST_SEED:
            raise SettingsInvalid(f"seed: {self.seed}; expected a whole number from 0 to {_MOST_SEED}")


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The training of the head on these answers."""

    steps_unrolled: int = 7  # draft steps that the head is unrolled for (EAGLE-3: 7), or tokens of a block (DSpark: 7)
    decay: float = 0.8  # step i counts decay**i (EAGLE-3: 0.8)
    starts_per_pass: int = 256  # places in the answers where drafts begin, in one forward and backward pass
    passes_per_step: int = 1  # passes that an optimiser step sums over
    matrix_rate: float = 0.02  # learning rate of Muon
    vector_rate: float = 2e-3  # learning rate of AdamW
    precision: Precision = "bfloat16"  # of the matrix products; weights, sums and optimisers are float32
    seed: int = 0

    def check(self) -> None:
        """Raises SettingsInvalid, naming the setting."""
        if self.steps_unrolled < 1 or self.starts_per_pass < 1 or self.passes_per_step < 1:
            raise SettingsInvalid("steps_unrolled, starts_per_pass and passes_per_step have to be at least 1")
        if not 0.0 < self.decay <= 1.0:
            raise SettingsInvalid(f"decay: {self.decay}; expected more than 0 and at most 1")


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: its base, the sizes of the head, the data and the training."""

    base_cid: str
    prompts_digest: str
    sizes: HeadSizes | BlockSizes
    data: DataPlan
    lesson: TrainingPlan
    goes_on_from: str | None  # the digest of a head that was trained before

    def document(self) -> dict[str, Any]:
        """The plan as JSON, for the run's folder and for the head's training facts."""
        document = asdict(self)
        document["sizes"]["feature_layers"] = list(self.sizes.feature_layers)
        document["data"]["temperatures"] = list(self.data.temperatures)
        return document


@dataclass(frozen=True, slots=True)
class Job:
    """Train a head for `base` on its answers to `prompts`, and write it to `out`."""

    base: Path
    prompts: tuple[Path, ...]
    out: Path
    work: Path  # answers, recordings, checkpoint and the latest head; the same job continues there
    budget: Budget
    data: DataPlan = field(default_factory=DataPlan)
    lesson: TrainingPlan = field(default_factory=TrainingPlan)
    kind: Literal["eagle3", "block"] = "eagle3"
    sizes: dict[str, Any] | None = None  # members of the kind's sizes, instead of the base's defaults
    start_from: Path | None = None  # a head to continue from; its sizes stay, except that of its draft vocabulary
    answering_minutes: float | None = None  # time limit of the answers; prompts without an answer by then are left out
    recompute: bool = False  # compute features in every epoch instead of keeping them on disk
    save_minutes: float = 5.0
    dtype: str = "bfloat16"  # of the weights as they are written
    k: int = 4  # depth of the chains of the evaluation

    def check(self) -> None:
        """Check the settings that can be checked without the base. Raises TrainingError."""
        check_out(self.out)
        self.data.check()
        self.lesson.check()
        if not self.prompts:
            raise PromptsInvalid("prompts: none were given; expected at least one file of JSON lines")
        missing = [str(path) for path in self.prompts if not path.is_file()]
        if missing:
            raise PromptsInvalid(f"{', '.join(missing)}: no such file; expected JSON lines with prompt or messages")
        if self.dtype not in DTYPES:
            raise SettingsInvalid(f"dtype: {self.dtype!r}; expected one of {', '.join(DTYPES)}")
        if self.kind == "block" and self.start_from is not None:
            raise SettingsInvalid("start_from: a block head cannot continue from another head; leave it out")
        if self.kind == "eagle3" and "layers" in (self.sizes or {}):
            raise SettingsInvalid("layers: an eagle3 head has one; leave it out, or train a block head")
        if self.start_from is not None and set(self.sizes or {}) - {_RESIZED}:
            raise SettingsInvalid(
                f"a head that starts from another keeps its sizes except {_RESIZED}: change the sizes or start_from"
            )

    def known(self, base: TargetConfig) -> Head | None:
        """The head to start from. Raises HeadError, or SettingsInvalid if this training cannot train its layers."""
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
        sizes: HeadSizes | BlockSizes
        if self.kind == "block":
            sizes = BlockSizes.for_base(base, **chosen)
        elif known is None:
            sizes = HeadSizes.for_base(base, **chosen)
        else:
            sizes = replace(HeadSizes.of(known.config), **chosen)
        before = None if self.start_from is None else digest_of(sorted(self.start_from.glob("*.safetensors")))
        return Plan(base_cid, digest_of(self.prompts), sizes, self.data, self.lesson, before)

    def config(self, base: TargetConfig, plan: Plan, known: Head | None) -> HeadConfig | BlockConfig:
        """Raises HeadError for sizes that do not fit."""
        if known is not None:
            config = replace(known.config, draft_vocab_size=plan.sizes.draft_vocab_size)
            config.check()
            return config
        rope = rope_parameters(self.base)
        longest = min(self.data.longest_prompt + self.data.max_tokens, base.context_length)
        if isinstance(plan.sizes, BlockSizes):
            return plan.sizes.config(base, rope, longest, plan.lesson.steps_unrolled)
        return plan.sizes.config(base, rope, longest)


class WorkFolder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.checkpoint = path / "checkpoint.pt"
        self.train = path / "train"
        self.snapshot = path / "head"

    def claim(self, plan: Plan) -> None:
        """Reserve the folder for this plan.

        Raises:
            OutputInvalid: it holds a run of another plan; the message names what differs. Or its plan is damaged.
        """
        path, document = self._path / "plan.json", plan.document()
        if path.exists():
            try:
                known = dict(json.loads(path.read_bytes()))
            except (ValueError, TypeError, RecursionError) as error:
                raise OutputInvalid(
                    f"{path}: not a plan ({error}); choose another folder, or remove this one"
                ) from error
            differing = sorted(name for name in known.keys() | document.keys() if known.get(name) != document.get(name))
            if differing:
                raise OutputInvalid(
                    f"{self._path}: holds a run with other settings ({', '.join(differing)}); use the same settings "
                    "to continue, choose another folder, or remove this one"
                )
            return
        write_durably(path, (json.dumps(document, indent=2) + "\n").encode(), mode=0o644, folder_mode=0o755)


def check_out(out: Path) -> None:
    """Raise OutputInvalid if the folder is not empty; a head is never overwritten."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputInvalid(f"{out}: exists already; choose another folder or remove it")


def digest_of(paths: Sequence[Path]) -> str:
    """A digest of the files' contents, in order."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"sha256:{digest.hexdigest()}"


@dataclass(frozen=True, slots=True)
class StepReport:
    """Measures of an optimiser step. Per draft step: loss in nats, share of right guesses."""

    losses: tuple[float, ...]
    acceptance: tuple[float, ...]
    starts: int


class Reporter(Protocol):
    """Receives the progress of a run, on the training thread."""

    def note(self, line: str) -> None:
        """A fact worth a line."""
        ...

    def answered(self, what: str, done: int, total: int) -> None:
        """The target has answered `done` of `total` prompts; `what` is their use."""
        ...

    def stepped(self, fraction: float, steps: int, report: StepReport) -> None:
        """An optimiser step is done."""
        ...

    def saved(self, steps: int, snapshot: Path) -> None:
        """A checkpoint is on disk, and a head that can be used as it is."""
        ...
