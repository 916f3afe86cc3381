"""One training run: steps, held-out losses, checkpoints that continue bit for bit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM

from demo.toy.corpus.dialogue import ROLE_TOKENS, SPECIAL_TOKENS
from demo.toy.corpus.drill import DRILL_LENGTH, Drill
from demo.toy.corpus.mixture import Mixture
from services.training.budget import Budget
from services.training.head.optimiser import Clock, Optimiser, rate_factor
from services.training.work_folder import write_checkpoint

_MATRIX_RATE = 0.01  # of Muon
_VECTOR_RATE = 2e-3  # of AdamW
_WEIGHT_OF_OTHERS = 0.1
# The tokenizer gives the special tokens the lowest ids, in their order.
_SYSTEM = SPECIAL_TOKENS.index(ROLE_TOKENS["system"])
_USER = SPECIAL_TOKENS.index(ROLE_TOKENS["user"])
_TOOL = SPECIAL_TOKENS.index(ROLE_TOKENS["tool"])

Windows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """Windows in an optimiser step, and how many of them go through the model at a time."""

    windows: int
    at_a_time: int

    def __post_init__(self) -> None:
        if self.windows % self.at_a_time:
            raise ValueError(f"{self.windows} windows a step cannot be cut into passes of {self.at_a_time}")

    @property
    def parts(self) -> int:
        return self.windows // self.at_a_time


@dataclass(frozen=True, slots=True)
class DrillPlan:
    """So many `steps` of random phrases to begin with, then `every` so many steps one of text retold (0: none)."""

    steps: int = 0
    every: int = 0


class Trainer:
    """A model under training. Everything that decides the next step is in `state()`."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        mixture: Mixture,
        budget: Budget,
        batch: Batch,
        drill: DrillPlan | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.model = model
        self.steps = 0
        self._mixture = mixture
        self._budget = budget
        self._batch = batch
        self._drill = Drill(model.config.vocab_size, mixture.seed)
        self._drill_plan = drill or DrillPlan()
        self._optimiser = Optimiser(model, _MATRIX_RATE, _VECTOR_RATE, "embed")
        self._clock = clock
        self._seconds_before = 0.0
        self._started = clock()

    @property
    def fraction(self) -> float:
        """How much of the budget is used, 1.0 or more when the run is over."""
        return self._budget.fraction(self.steps, self._seconds())

    @property
    def tokens_per_step(self) -> int:
        return self._batch.windows * self._mixture.length

    def step(self) -> float:
        """One optimiser step; returns the mean loss of its windows in nats a token, weighted by speaker."""
        self.model.train()
        parts = np.split(self._next_windows(), self._batch.parts)
        total = 0.0
        for part in parts:
            loss = self._loss(part) / len(parts)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        self._optimiser.step(rate_factor(self.fraction, decay_from=0.4))
        self.steps += 1
        return total

    @torch.no_grad()
    def held_out_losses(self, domains: Mapping[str, Windows]) -> dict[str, float]:
        """Mean loss per domain in nats a token, weighted by speaker as in training."""
        self.model.train(False)
        return {
            name: float(np.mean([self._loss(w[None]).item() for w in windows])) for name, windows in domains.items()
        }

    def save(self, path: Path) -> None:
        write_checkpoint(path, self.state())

    def load(self, path: Path) -> None:
        self.restore(torch.load(path, map_location=self.model.device, weights_only=True))

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimiser": self._optimiser.state(),
            "mixture": self._mixture.state(),
            "steps": self.steps,
            "seconds": self._seconds(),
            "torch_rng": torch.get_rng_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimiser.restore(state["optimiser"])
        self._mixture.restore(state["mixture"])
        self.steps = state["steps"]
        self._seconds_before, self._started = state["seconds"], self._clock()
        torch.set_rng_state(state["torch_rng"].cpu())

    def _next_windows(self) -> Windows:
        """The drill's at first, then the mixture's, retold now and then; as much text a step."""
        if self.steps < self._drill_plan.steps:
            at_a_time = max(1, self._batch.at_a_time * self._mixture.length // DRILL_LENGTH)
            return self._drill.batch(self.steps, self._batch.parts * at_a_time)
        windows = self._mixture.batch(self._batch.windows)
        if self._drill_plan.every and self.steps % self._drill_plan.every == 0:
            return self._drill.retold(self.steps, windows)
        return windows

    def _seconds(self) -> float:
        return self._seconds_before + self._clock() - self._started

    def _loss(self, windows: Windows) -> torch.Tensor:
        tokens = torch.from_numpy(windows).to(self.model.device)
        with torch.autocast(self.model.device.type, dtype=torch.bfloat16):
            logits = self.model(input_ids=tokens[:, :-1], use_cache=False).logits
        losses = F.cross_entropy(logits.float().transpose(1, 2), tokens[:, 1:], reduction="none")
        weights = token_weights(tokens[:, :-1])
        return ((losses * weights).sum(1) / weights.sum(1)).mean()


def token_weights(tokens: torch.Tensor) -> torch.Tensor:
    """The weight of the token after each of `tokens`; both of shape (windows, length).

    The assistant's tokens count in full, as does text outside of dialogues. Those of others count little: they are full
    of invented names that nobody can predict, and would drown what there is to learn about copying them.
    """
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    is_special = tokens < len(SPECIAL_TOKENS)
    latest = torch.where(is_special, positions, 0).cummax(dim=1).values
    speaker = tokens.gather(1, latest)
    others = (speaker == _SYSTEM) | (speaker == _USER) | (speaker == _TOOL)
    return torch.where(others, _WEIGHT_OF_OTHERS, 1.0)
