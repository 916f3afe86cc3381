"""Everything that decides what a run does, in one value: the same plan gives the same head."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from services.generation.drafting.eagle3.config import HeadConfig
from services.generation.target.config.config import TargetConfig
from services.training.training_error import SettingsInvalid

Precision = Literal["bfloat16", "float32"]


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """Shape of the head; where it follows from the base, `for_base` fills it in."""

    feature_layers: tuple[int, ...]
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    draft_vocab_size: int

    @classmethod
    def for_base(cls, base: TargetConfig, **chosen: Any) -> HeadSizes:
        """The base's own widths; features after layer 2, half of them, and three before the last (EAGLE-3's choice).

        Members in `chosen` that are not None take the place of these.
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
        return cls(
            config.feature_layers, config.intermediate_size, config.heads, config.kv_heads, config.head_dim,
            config.draft_vocab_size,
        )  # fmt: skip

    def config(self, base: TargetConfig, rope: dict[str, Any], trained_length: int) -> HeadConfig:
        """The head's config.json: every choice that this training makes, none left to who loads it."""
        config = HeadConfig(
            layers=1,
            hidden_size=base.hidden_size,
            target_hidden_size=base.hidden_size,
            intermediate_size=self.intermediate_size,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            norm_epsilon=base.norm_epsilon,
            vocab_size=base.vocab_size,
            draft_vocab_size=self.draft_vocab_size,
            feature_layers=self.feature_layers,
            rope=rope,
            trained_length=trained_length,
            attention_bias=False,
            output_bias=False,
            mlp_bias=False,
            head_norms=False,
            own_embeddings=False,
            norm_before_residual=False,
            norm_before_fc=False,
            fc_norm=False,
            norm_output=False,
        )
        config.check()
        config.check_base(base)
        return config


@dataclass(frozen=True, slots=True)
class DataPlan:
    """Which answers are asked of the target."""

    temperatures: tuple[float, ...] = (0.0, 0.7, 0.0, 1.0)  # prompts take them in turns
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


@dataclass(frozen=True, slots=True)
class LessonPlan:
    """How the head is trained on them."""

    steps_unrolled: int = 7  # draft steps that the head is unrolled for (EAGLE-3: 7)
    decay: float = 0.8  # step i counts decay**i (EAGLE-3: 0.8)
    starts_per_pass: int = 256  # places in the answers that a draft begins at, in one forward and backward pass
    passes_per_step: int = 1  # passes that an optimiser step sums over, those of all devices together
    matrix_rate: float = 0.02  # learning rate of Muon
    vector_rate: float = 2e-3  # learning rate of AdamW
    precision: Precision = "bfloat16"  # of the matrix products; weights, sums and optimisers are float32
    seed: int = 0

    def check(self, devices: int) -> None:
        """Raises SettingsInvalid, naming the setting."""
        if self.steps_unrolled < 1 or self.starts_per_pass < 1 or self.passes_per_step < 1:
            raise SettingsInvalid("steps_unrolled, starts_per_pass and passes_per_step have to be at least 1")
        if not 0.0 < self.decay <= 1.0:
            raise SettingsInvalid(f"decay: {self.decay}; expected more than 0 and at most 1")
        if self.passes_per_step % devices:
            raise SettingsInvalid(
                f"passes_per_step: {self.passes_per_step} cannot be shared by {devices} devices; use a multiple of it"
            )


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: for which base, of which shape, from which data, how."""

    base_cid: str
    prompts_digest: str
    sizes: HeadSizes
    data: DataPlan
    lesson: LessonPlan
    goes_on_from: str | None  # the digest of a head that was trained before

    def document(self) -> dict[str, Any]:
        """As JSON has it, for the run's folder and for the head's training facts."""
        document = asdict(self)
        document["sizes"]["feature_layers"] = list(self.sizes.feature_layers)
        document["data"]["temperatures"] = list(self.data.temperatures)
        return document
