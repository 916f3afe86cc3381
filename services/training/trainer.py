"""One training run: the initial head, optimisers, steps, and checkpoints from which it continues bit for bit.

Muon (Jordan et al. 2024) updates matrices, except those over a vocabulary; AdamW updates all other parameters.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import llvmlite.binding as llvm
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ledger.durable_file import replaced_durably
from services.generation.drafting.block.block_checkpoint import BlockConfig, write_block_head
from services.generation.drafting.eagle3.checkpoint import Head, HeadConfig, write_head
from services.generation.target.config.config import TargetConfig
from services.generation.target.config.layer_specs import EMBEDDING
from services.generation.target.family import NORM
from services.generation.target.files.safetensors import Part
from services.generation.target.weights import checked_weights, output_name
from services.training.block import BlockModule, block_sums
from services.training.head import HeadModule, drafted_tensors, learn_rounded
from services.training.plan import DTYPES, Budget, OutputInvalid, Precision, SettingsInvalid, StepReport, TrainingPlan
from services.training.prompts import Answer
from services.training.recordings import Recordings
from services.training.unroll import Passes, Teacher, step_sums, window_of

_MOMENTUM = 0.95
_WEIGHT_DECAY = 0.01
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_LEAST_NORM = 1e-7
_VOCABULARY = ("lm_head", "markov_head", "confidence_head")
"""Beginnings of the names of matrices over a vocabulary. AdamW updates them, and whatever has one row."""

Clock = Callable[[], float]
_WARM_UP = 0.01
_DECAY_FROM = 0.3
_LEAST_WARM_UP = 0.05
_LARGEST_GRADIENT_NORM = 1.0
FACTS_FILE = "training.json"
_Module = TypeVar("_Module", HeadModule, BlockModule)
_UNSURE = 0.03

_STORED = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.int64: "I64"}
"""Names of dtypes in safetensors files."""

_BFLOAT16 = ("avx512bf16", "amx-bf16", "bf16")
"""LLVM's names of instructions for products in bfloat16: two of x86-64, one of AArch64."""


class Muon(torch.optim.Optimizer):
    """Muon in a chosen dtype. In bfloat16 it equals torch's bit for bit.

    torch's has no other dtype, and bfloat16 is slow on many CPUs.
    """

    def __init__(self, matrices: Iterable[nn.Parameter], rate: float, dtype: torch.dtype) -> None:
        """`rate` is the learning rate, `dtype` that of the orthogonalisation."""
        super().__init__(matrices, {"lr": rate})
        self._dtype = dtype

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrix in group["params"]:
                update = self._update(matrix)
                matrix.mul_(1 - group["lr"] * _WEIGHT_DECAY)
                matrix.add_(update, alpha=-group["lr"] * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5)

    def _update(self, matrix: Tensor) -> Tensor:
        momentum = self.state[matrix].setdefault("momentum_buffer", torch.zeros_like(matrix))
        assert matrix.grad is not None
        momentum.lerp_(matrix.grad, 1 - _MOMENTUM)
        return orthogonalised(matrix.grad.lerp(momentum, _MOMENTUM).to(self._dtype)).to(matrix.dtype)


def orthogonalised(matrix: Tensor) -> Tensor:
    """An approximation of the nearest matrix whose singular values are all 1, by the Newton-Schulz iteration."""
    tall = matrix.shape[0] > matrix.shape[1]
    wide = matrix.T if tall else matrix
    wide = wide / wide.norm().clamp(min=_LEAST_NORM)
    first, third, fifth = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=third, alpha=fifth), wide, beta=first)
    return wide.T if tall else wide


def rate_factor(fraction: float) -> float:
    """Short linear warm-up, a plateau up to `_DECAY_FROM` of the run, then a long linear decay to zero."""
    if fraction < _WARM_UP:
        return max(fraction / _WARM_UP, _LEAST_WARM_UP)
    if fraction < _DECAY_FROM:
        return 1.0
    return max(0.0, (1.0 - fraction) / (1.0 - _DECAY_FROM))


class Optimiser:
    """Muon and AdamW, under one schedule of learning rates."""

    def __init__(self, model: nn.Module, matrix_rate: float, vector_rate: float, dtype: torch.dtype) -> None:
        """`dtype` is that of Muon's products."""
        named = list(model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and not name.startswith(_VOCABULARY)]
        others = [p for name, p in named if p.ndim != 2 or name.startswith(_VOCABULARY)]
        self._parameters = [*matrices, *others]
        self._parts: dict[str, tuple[torch.optim.Optimizer, float]] = {
            "muon": (Muon(matrices, matrix_rate, dtype), matrix_rate),
            "adamw": (torch.optim.AdamW(others, lr=vector_rate, betas=(0.9, 0.95), weight_decay=0.0), vector_rate),
        }

    def step(self, factor: float) -> None:
        """Apply the gradients at `factor` times the learning rates, then clear them."""
        torch.nn.utils.clip_grad_norm_(self._parameters, _LARGEST_GRADIENT_NORM)
        for part, rate in self._parts.values():
            for group in part.param_groups:
                group["lr"] = rate * factor
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, (part, _) in self._parts.items()}

    def restore(self, state: dict[str, Any]) -> None:
        for name, (part, _) in self._parts.items():
            part.load_state_dict(state[name])


def frequent_tokens(answers: Iterable[Answer], size: int, vocab_size: int, known: Iterable[int] = ()) -> Tensor:
    """The `size` most frequent tokens of the target's answers, ascending; of equally frequent ones `known` ones first,
    then the lower id. If there are fewer, tokens without an occurrence follow in that order.
    """
    counts, kept = Counter(token for answer in answers for token in answer.output), frozenset(known)
    ranked = sorted(range(vocab_size), key=lambda token: (-counts[token], token not in kept, token))
    return torch.tensor(sorted(ranked[:size]))


def coverage(answers: Iterable[Answer], target_ids: Tensor) -> float:
    """The share of the answers' tokens that are in the draft vocabulary."""
    drafted = set(target_ids.tolist())
    hits = [token in drafted for answer in answers for token in answer.output]
    return sum(hits) / len(hits) if hits else 0.0


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of a base: embeddings [vocab_size, hidden], final norm [hidden] with its offset and the logit scale
    multiplied in, output matrix [vocab_size, hidden], and the cap of logits, 0 for none.
    """

    embeddings: Tensor
    norm: Tensor
    head: Tensor
    cap: float

    @classmethod
    def read(cls, base: Path, config: TargetConfig) -> Ends:
        """The tensors in the base's weights, in float32. Raises TargetError."""
        weights = checked_weights(base, config)

        def read(name: str) -> Tensor:
            return torch.from_numpy(np.array(weights.tensor(name).values(), np.float32))

        embeddings = read(EMBEDDING)
        norm = (read(NORM) + config.norm_offset) * config.logit_scale
        output = output_name(weights, config)
        return cls(embeddings, norm, embeddings if output == EMBEDDING else read(output), config.logit_cap)

    def teacher(self, epsilon: float, target_ids: Tensor) -> Teacher:
        return Teacher(self.norm, self.head, epsilon, target_ids, self.cap)


def _drawn(kind: Callable[[Any, Tensor], _Module], config: HeadConfig | BlockConfig, ends: Ends, seed: int) -> _Module:
    """A head whose matrices are random."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = kind(config, ends.embeddings)
        for parameter in head.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return head


def fresh_head(config: HeadConfig, ends: Ends, target_ids: Tensor, seed: int) -> HeadModule:
    """A head before training: random matrices, the base's output matrix and norm, and a layer that adds nothing to its
    input yet.
    """
    head = _drawn(HeadModule, config, ends, seed)
    with torch.no_grad():
        head.lm_head.weight.copy_(ends.head[target_ids])
        head.norm.weight.copy_(ends.norm)
        head.midlayer.self_attn.o_proj.weight.zero_()
        head.midlayer.mlp.down_proj.weight.zero_()
    return head


def fresh_block(config: BlockConfig, ends: Ends, target_ids: Tensor, seed: int) -> BlockModule:
    """A block head before training, initialised as in `fresh_head`; its Markov and confidence terms are zero.

    The norm is small, so that the logits of mask tokens are: they carry no information yet, and confident wrong logits
    at the base's own scale cost 150 nats a token.
    """
    head = _drawn(BlockModule, config, ends, seed)
    with torch.no_grad():
        head.lm_head.weight.copy_(ends.head[target_ids])
        head.norm.weight.copy_(_UNSURE * ends.norm)
        for name, parameter in head.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight", "markov_w2.weight")) or "confidence" in name:
                parameter.zero_()
    return head


def known_head(known: Head, config: HeadConfig, ends: Ends, target_ids: Tensor) -> HeadModule:
    """A trained head, for this base or a former version of it, with `target_ids` as its new draft vocabulary.

    Tokens that are new in it start with the base's rows of the output matrix.
    """
    head = HeadModule(config, ends.embeddings)
    rows = ends.head.clone()
    weights = {name: torch.from_numpy(values) for name, values in known.tensors.items()}
    rows[torch.from_numpy(known.target_ids)] = weights["lm_head.weight"].to(rows.dtype)
    head.load_state_dict({**weights, "lm_head.weight": rows[target_ids]})
    return head


def export(
    folder: Path, head: HeadModule | BlockModule, target_ids: Tensor, dtype: torch.dtype, facts: dict[str, Any]
) -> None:
    """Write the head in kolm's layout, and `facts` in the same folder. Each file is replaced atomically."""
    tensors = {name: _part(tensor.detach().to("cpu", dtype)) for name, tensor in drafted_tensors(head).items()}
    offsets = _part(target_ids.cpu() - torch.arange(len(target_ids)))
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".head-", dir=folder.parent))
    try:
        if isinstance(head, BlockModule):
            own = {"d2t": offsets} if head.config.draft_vocab_size < head.config.vocab_size else {}
            write_block_head(staging, head.config, {**tensors, **own})
        else:
            write_head(staging, head.config, {**tensors, "d2t": offsets})
        (staging / FACTS_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        folder.mkdir(exist_ok=True)
        for file in sorted(staging.iterdir()):
            file.chmod(0o644)
            file.replace(folder / file.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _part(tensor: Tensor) -> Part:
    """The tensor as a part of a safetensors file."""
    flat = tensor.contiguous().reshape(-1)
    return Part(_STORED[tensor.dtype], tuple(tensor.shape), lambda: flat.view(torch.uint8).numpy())


def _kind(wanted: str | None) -> str:
    return wanted or ("cuda" if torch.cuda.is_available() else "cpu")


def training_device(wanted: str | None) -> torch.device:
    """The device; `wanted` is `cpu`, `cuda`, or None for CUDA if there is one. Raises SettingsInvalid if it is
    missing.
    """
    kind = _kind(wanted)
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise SettingsInvalid(f"device: {kind!r} is not supported here; expected cpu, or cuda if torch finds one")
    return torch.device(kind)


def faster_precision(wanted: str | None) -> Precision:
    """The precision in which a device (as `training_device` takes it) multiplies faster. A CPU without instructions for
    bfloat16 takes about five times as long with bfloat16.
    """
    has = llvm.get_host_cpu_features()
    return "bfloat16" if _kind(wanted) == "cuda" or any(has.get(each) for each in _BFLOAT16) else "float32"


class Trainer:
    """A head in training. `state()` contains everything that the next step depends on, besides the arguments."""

    def __init__(
        self,
        head: HeadModule | BlockModule,
        teacher: Teacher,
        answers: list[Answer],
        recordings: Recordings,
        plan: TrainingPlan,
        budget: Budget,
        device: torch.device,
        clock: Clock = time.monotonic,
    ) -> None:
        learn_rounded(head)
        self.head = head
        self.steps = self.starts = 0  # optimiser steps, and places in answers at which their drafts began
        self._target_ids = teacher.target_ids
        self._teacher = teacher.to(device)
        self._passes = Passes(answers, plan.starts_per_pass, plan.seed)
        self._answers, self._recordings = answers, recordings
        self._plan, self._budget, self._device = plan, budget, device
        self._optimiser = Optimiser(head, plan.matrix_rate, plan.vector_rate, dtype=DTYPES[plan.precision])
        self._clock, self._seconds_before, self._started = clock, 0.0, clock()

    @property
    def fraction(self) -> float:
        """The used share of the budget; the run ends at 1.0 or more."""
        return self._budget.fraction(self.steps, self.seconds)

    def step(self) -> StepReport:
        """Take one optimiser step over some passes. The loss of each draft step is the mean over all their starts."""
        passes = self._passes.of_step(self.steps, self._plan.passes_per_step)
        starts = self._starts(passes)
        weights = self._plan.decay ** torch.arange(self._plan.steps_unrolled) / starts.clamp(min=1)
        sums = torch.zeros(2, self._plan.steps_unrolled, device=self._device)
        for numbers in passes:
            sums += self._learn(numbers, weights.to(self._device))
        self._optimiser.step(rate_factor(self.fraction))
        self.steps += 1
        self.starts += int(starts[0])
        return _report(sums.cpu(), starts)

    def _learn(self, numbers: list[int], weights: Tensor) -> Tensor:
        """Add the gradients of one pass, draft steps weighted; return sums of losses and correct guesses [2, steps]."""
        device, half = self._device, self._plan.precision == "bfloat16"
        window = window_of([self._answers[n] for n in numbers], self._recordings.of(numbers))
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half), parametrize.cached():
            seen = window.to(device, torch.bfloat16 if half else torch.float32)
            if isinstance(self.head, BlockModule):
                sums = block_sums(self.head, self._teacher, seen, weights)
            else:
                sums = step_sums(self.head, self._teacher, seen, weights)
        sums.loss.backward()  # type: ignore[no-untyped-call]
        return torch.stack([sums.losses, sums.right])

    def _starts(self, passes: list[list[int]]) -> Tensor:
        """[steps] number of starts in these passes that have a token to predict at each draft step."""
        lengths = torch.tensor([len(self._answers[number].output) for numbers in passes for number in numbers])
        return torch.stack([(lengths - step).clamp(min=0).sum() for step in range(1, self._plan.steps_unrolled + 1)])

    def save(self, path: Path) -> None:
        """Write a checkpoint. A crash at any point leaves the previous one or the new one, never a part."""
        with replaced_durably(path, mode=0o644, folder_mode=0o755) as file:
            torch.save(self.state(), file)

    def load(self, path: Path) -> None:
        self.restore(torch.load(path, map_location=self._device, weights_only=True))

    def state(self) -> dict[str, Any]:
        return {
            "head": self.head.state_dict(),
            "optimiser": self._optimiser.state(),
            "target_ids": self._target_ids,
            "steps": self.steps,
            "starts": self.starts,
            "seconds": self.seconds,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Raises OutputInvalid if its draft vocabulary is another (rows of the output matrix are
        of other tokens), or if it is of another version of kolm.
        """
        if state["head"].keys() != self.head.state_dict().keys():
            raise OutputInvalid("the checkpoint is of another version of kolm; use another folder, or remove it")
        if not torch.equal(state["target_ids"].cpu(), self._target_ids.cpu()):
            raise OutputInvalid("the checkpoint's draft vocabulary is another one; use another folder, or remove it")
        self.head.load_state_dict(state["head"])
        self._optimiser.restore(state["optimiser"])
        self.steps, self.starts = state["steps"], state["starts"]
        self._seconds_before, self._started = state["seconds"], self._clock()

    @property
    def seconds(self) -> float:
        """Seconds of training, including the time before the checkpoint that the run continued from."""
        return self._seconds_before + self._clock() - self._started


def _report(sums: Tensor, starts: Tensor) -> StepReport:
    losses, right = (sums / starts.clamp(min=1)).tolist()
    return StepReport(tuple(losses), tuple(right), int(starts[0]))
