"""One training run: steps, held-out losses, checkpoints that continue bit for bit."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM

from demo.corpus.mixture import Mixture
from demo.optimiser import Optimiser
from demo.schedule import Budget, Clock, rate_factor

Windows = npt.NDArray[np.int64]


class Trainer:
    """A model under training. Everything that decides the next step is in `state()`."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        mixture: Mixture,
        budget: Budget,
        windows_per_step: int,
        micro_batch: int,
        clock: Clock = time.monotonic,
    ) -> None:
        if windows_per_step % micro_batch:
            raise ValueError(f"{windows_per_step} windows a step cannot be cut into micro-batches of {micro_batch}")
        self.model = model
        self.steps = 0
        self._mixture = mixture
        self._budget = budget
        self._windows_per_step = windows_per_step
        self._micro_batch = micro_batch
        self._optimiser = Optimiser(model)
        self._clock = clock
        self._seconds_before = 0.0
        self._started = clock()

    @property
    def fraction(self) -> float:
        """How much of the budget is used, 1.0 or more when the run is over."""
        return self._budget.fraction(self.steps, self._seconds())

    @property
    def tokens_per_step(self) -> int:
        return self._windows_per_step * self._mixture.length

    def step(self) -> float:
        """One optimiser step; returns the mean loss of its windows in nats a token."""
        self.model.train()
        windows = self._mixture.batch(self._windows_per_step)
        parts = np.split(windows, self._windows_per_step // self._micro_batch)
        total = 0.0
        for part in parts:
            loss = self._loss(part) / len(parts)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        self._optimiser.step(rate_factor(self.fraction))
        self.steps += 1
        return total

    @torch.no_grad()
    def held_out_losses(self, domains: Mapping[str, Windows]) -> dict[str, float]:
        """Mean loss per domain in nats a token."""
        self.model.train(False)
        return {
            name: float(np.mean([self._loss(w[None]).item() for w in windows])) for name, windows in domains.items()
        }

    def save(self, path: Path) -> None:
        """Write a checkpoint; a crash at any point leaves the previous one or the new one, never a part."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            torch.save(self.state(), file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

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

    def _seconds(self) -> float:
        return self._seconds_before + self._clock() - self._started

    def _loss(self, windows: Windows) -> torch.Tensor:
        tokens = torch.from_numpy(windows).to(self.model.device)
        with torch.autocast(self.model.device.type, dtype=torch.bfloat16):
            logits = self.model(input_ids=tokens[:, :-1], use_cache=False).logits
        return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
