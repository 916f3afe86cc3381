"""A whole run: the target answers, the head learns, the head is measured. A stopped run continues at its next start.

The curve of its checkpoints, as lines and as a plot, shows when further training gains nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ledger.durable_file import write_durably
from services.generation.drafting.block.block_checkpoint import BlockConfig
from services.generation.drafting.methods import load_head
from services.generation.state_folder import only_one
from services.generation.target.cpu import load_target
from services.generation.target.target import Target
from services.training.answering import Streams
from services.training.block import BlockModule
from services.training.head import HeadModule
from services.training.kscore import Measured, NothingMeasured, measure
from services.training.plan import DTYPES, SECONDS_PER_MINUTE, Job, OutputInvalid, Plan, Reporter, WorkFolder
from services.training.recordings import Collection, Data
from services.training.trainer import (
    Ends,
    Trainer,
    coverage,
    export,
    frequent_tokens,
    fresh_block,
    fresh_head,
    known_head,
    rate_factor,
)

_GLANCED, _GLANCED_TOKENS = 32, 64  # held-out prompts, and tokens of their answers, measured at each checkpoint
_FEW_ANSWERS = 1000
"""The number of answers below which a warning is given: a head then fits them and drafts other texts badly."""

CURVE_FILE, PLOT_FILE = "acceptance.jsonl", "acceptance.svg"
_PATIENCE = 6  # checkpoints
_SETTLED = 0.5  # of the learning rate
_LEAST_RISE = 0.01  # tokens a pass: the resolution of 32 held-out answers
_WIDTH, _HEIGHT, _MARGIN = 640, 320, 48
_COLOURS = ("#1b6ca8", "#2a9d8f", "#8ab17d", "#e9a23b", "#e76f51", "#9b5de5", "#6c757d")


def train_head(
    job: Job, device: torch.device, reporter: Reporter, stop: Callable[[], bool]
) -> dict[str, Measured] | None:
    """Train a head into `job.out`; returns its held-out acceptance by domain, or None if `stop` ended the run.

    Raises:
        TrainingError, HeadError, TargetError: parts of the job do not fit together; the message names them.
    """
    job.check()
    target = load_target(job.base)
    taken = OutputInvalid(f"{job.work}: another run uses it; wait until that run ends, or choose another --work")
    with only_one(job.work / "lock", taken):
        found = _train(job, target, device, reporter, stop)
    return found


def _train(
    job: Job, target: Target, device: torch.device, reporter: Reporter, stop: Callable[[], bool]
) -> dict[str, Measured] | None:
    known = job.known(target.config)
    plan = job.plan(target.config, target.base_cid, known)
    config = job.config(target.config, plan, known)
    folder = WorkFolder(job.work)
    folder.claim(plan)
    streams = Streams(config.feature_layers, target.config.hidden_size, target.config.layers)
    data = Collection(job, target, streams, folder, reporter, stop).collect()
    if data is None:
        return None
    kept = () if known is None else known.target_ids.tolist()
    target_ids = frequent_tokens(data.answers, config.draft_vocab_size, config.vocab_size, kept)
    ends = Ends.read(job.base, target.config)
    head: HeadModule | BlockModule
    if isinstance(config, BlockConfig):
        head = fresh_block(config, ends, target_ids, job.lesson.seed)
    elif known is None:
        head = fresh_head(config, ends, target_ids, job.lesson.seed)
    else:
        head = known_head(known, config, ends, target_ids)
    teacher = ends.teacher(target.config.norm_epsilon, target_ids)
    trainer = Trainer(head.to(device), teacher, data.answers, data.recordings, job.lesson, job.budget, device)
    curve = Curve(job.work)
    return _Run(job, target, plan, folder, data, trainer, target_ids, device, reporter, stop, curve).to_the_end()


@dataclass(slots=True)
class _Run:
    """The lessons, with a checkpoint and a usable head every few minutes."""

    job: Job
    target: Target
    plan: Plan
    folder: WorkFolder
    data: Data
    trainer: Trainer
    target_ids: Tensor
    device: torch.device
    reporter: Reporter
    stop: Callable[[], bool]
    curve: Curve
    _saved_at: float = field(default_factory=time.monotonic)

    def to_the_end(self) -> dict[str, Measured] | None:
        if self.folder.checkpoint.exists():
            self.trainer.load(self.folder.checkpoint)
        self._say_what_it_learns_from()
        fraction = self.trainer.fraction
        while fraction < 1.0:
            report = self.trainer.step()
            fraction = self.trainer.fraction
            self.reporter.stepped(fraction, self.trainer.steps, report)
            if self.stop():
                self._save()
                return None
            if time.monotonic() - self._saved_at > self.job.save_minutes * SECONDS_PER_MINUTE:
                self._save()
                if self.curve.is_over(rate_factor(fraction)):
                    self.reporter.note("held-out acceptance rises no more: the run ends here")
                    return self._measured()
        self._save()
        return self._measured()

    def _measured(self) -> dict[str, Measured]:
        """The snapshot on held-out prompts by domain, as the engine drafts with it; a domain of answers too short for a
        draft is left out.
        """
        head, held_out = load_head(self.folder.snapshot, self.target.config), self.data.held_out
        found: dict[str, Measured] = {}
        before = 0
        for domain in sorted({prompt.domain for prompt in held_out}):
            prompts = [prompt.tokens for prompt in held_out if prompt.domain == domain]
            progress = partial(self._report_measured, before, len(held_out))
            with suppress(NothingMeasured):
                found[domain] = measure(
                    self.target, head, prompts, k=self.job.k, max_tokens=self.job.data.max_tokens, progress=progress
                )
            before += len(prompts)
        self._export(self.job.out, found)
        self.curve.write(self.job.out)
        return found

    def _report_measured(self, before: int, total: int, done: int) -> None:
        self.reporter.answered("held out", before + done, total)

    def _save(self) -> None:
        self.trainer.save(self.folder.checkpoint)
        self._export(self.folder.snapshot, {})
        self.reporter.saved(self.trainer.steps, self.folder.snapshot)
        self._say_how_it_drafts()
        self._saved_at = time.monotonic()

    def _say_how_it_drafts(self) -> None:
        """The acceptance of a snapshot on a few of the held-out prompts."""
        head = load_head(self.folder.snapshot, self.target.config)
        prompts = [prompt.tokens for prompt in self.data.held_out[:_GLANCED]]
        try:
            seen = measure(self.target, head, prompts, k=self.job.lesson.steps_unrolled, max_tokens=_GLANCED_TOKENS)
        except NothingMeasured:
            return
        self.curve.add(Point.of(self.trainer.starts, self.trainer.steps, seen))
        shares = " ".join(f"{share:.0%}" for share in seen.acceptance_by_depth)
        self.reporter.note(f"held out: {seen.mean_acceptance_length:.2f} tokens a pass, accepted by position {shares}")

    def _export(self, folder: Path, found: dict[str, Measured]) -> None:
        export(folder, self.trainer.head, self.target_ids, DTYPES[self.job.dtype], self._facts(found))

    def _say_what_it_learns_from(self) -> None:
        answers, head = self.data.answers, self.trainer.head
        tokens, drafted = sum(len(answer.output) for answer in answers), coverage(answers, self.target_ids)
        self.reporter.note(
            f"{len(answers):,} answers, {tokens:,} tokens, {drafted:.1%} of them in the draft vocabulary"
        )
        if len(answers) < _FEW_ANSWERS:
            self.reporter.note(
                f"warning: a head learns little from fewer than {_FEW_ANSWERS:,} answers; give more --prompts, or "
                "more --answering-minutes"
            )
        size, precision = sum(p.numel() for p in head.parameters()), self.job.lesson.precision
        self.reporter.note(f"{size:,} parameters on {self.device}, matrix products in {precision}")
        if self.trainer.steps:
            self.reporter.note(f"continuing after {self.trainer.steps} steps")

    def _facts(self, found: dict[str, Measured]) -> dict[str, Any]:
        """The content of training.json: how this head was made, and its measures."""
        answers = self.data.answers
        return {
            **self.plan.document(),
            "answers": len(answers),
            "answer_tokens": sum(len(answer.output) for answer in answers),
            "draft_vocabulary_coverage": round(coverage(answers, self.target_ids), 4),
            "starts": self.trainer.starts,
            "steps": self.trainer.steps,
            "seconds": round(self.trainer.seconds),
            "k": self.job.k,
            "held_out_acceptance": {
                domain: {
                    "mean_length": round(measured.mean_acceptance_length, 3),
                    "by_depth": [round(share, 3) for share in measured.acceptance_by_depth],
                    "tokens": measured.tokens,
                }
                for domain, measured in found.items()
            },
        }


@dataclass(frozen=True, slots=True)
class Point:
    """The acceptance of a head after learning from `tokens` tokens."""

    tokens: int  # starts of drafts that it has learned from, repeated ones counted again
    steps: int
    mean_length: float  # tokens a pass on held-out prompts, the target's own included
    by_depth: tuple[float, ...]  # share of drafts whose token at that depth was accepted

    @classmethod
    def of(cls, tokens: int, steps: int, found: Measured) -> Point:
        shares = tuple(round(share, 4) for share in found.acceptance_by_depth)
        return cls(tokens, steps, round(found.mean_acceptance_length, 4), shares)


class Curve:
    """The points of a run in a folder, in the order in which they came."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = folder / CURVE_FILE
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # earlier versions could leave a part of a line
        self.points = [Point(**{**entry, "by_depth": tuple(entry["by_depth"])}) for entry in map(json.loads, lines)]

    def add(self, point: Point) -> None:
        """Points of steps that a crash undid are replaced: the run goes over them again."""
        self.points = [*(each for each in self.points if each.steps < point.steps), point]
        self.write(self._folder)

    def write(self, folder: Path) -> None:
        """Numbers and plot."""
        lines = "".join(json.dumps(asdict(point)) + "\n" for point in self.points)
        for name, text in ((CURVE_FILE, lines), (PLOT_FILE, plot(self.points))):
            write_durably(folder / name, text.encode(), mode=0o644, folder_mode=0o755)

    def is_over(self, rate: float) -> bool:
        """Whether the last checkpoints gained nothing over earlier ones, at this share of the learning rate. While the
        rate is high a plateau is no sign: most of a head's gain comes as the rate falls.
        """
        lengths = [point.mean_length for point in self.points]
        before, lately = lengths[:-_PATIENCE], lengths[-_PATIENCE:]
        return rate < _SETTLED and bool(before) and max(lately) < max(before) + _LEAST_RISE


def plot(points: Sequence[Point]) -> str:
    """An SVG: acceptance by depth, from 0 to 1, over tokens."""
    most = max((point.tokens for point in points), default=0) or 1
    depths = max((len(point.by_depth) for point in points), default=0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="11"><rect width="100%" height="100%" fill="white"/>'
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _across(share)
        parts.append(f'<path d="M{_MARGIN} {y:.1f}H{_WIDTH - _MARGIN}" stroke="#ddd"/>')
        parts.append(_text(8, y + 4, f"{share:.0%}"))
    for depth in range(depths):
        colour = _COLOURS[depth % len(_COLOURS)]
        places = [
            f"{_along(point.tokens / most):.1f},{_across(point.by_depth[depth]):.1f}"
            for point in points
            if depth < len(point.by_depth)
        ]
        parts.append(f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(_WIDTH - _MARGIN + 4, float(places[-1].split(",")[1]) + 4, f"depth {depth + 1}"))
    last = f", {points[-1].mean_length:.2f} tokens a pass" if points else ""
    parts.append(_text(_MARGIN, _HEIGHT - 12, f"held-out acceptance over {most:,} tokens{last}"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _along(share: float) -> float:
    return _MARGIN + share * (_WIDTH - 2 * _MARGIN)


def _across(share: float) -> float:
    return _HEIGHT - _MARGIN - share * (_HEIGHT - 1.5 * _MARGIN)


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="#333">{escape(text)}</text>'
