"""Train the bundled base model: `python -m demo.train_base --minutes 80`.

Runs on CUDA where there is a device and on the CPU otherwise. Stop it with Ctrl-C and start it again with the same
arguments: it continues from its last checkpoint.
"""

from __future__ import annotations

import argparse
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from demo import tokenizer as bpe
from demo.architecture import Architecture
from demo.corpus.mixture import DOMAINS, Mixture, fixed_windows, tokenise
from demo.export import export
from demo.schedule import Budget, Minutes, Steps
from demo.trainer import Trainer, Windows

_HELD_OUT_DIALOGUES = 400
_HELD_OUT_WINDOWS = 6
_SMOOTHING = 0.95
"""Weight of the past in the shown loss."""


@dataclass(slots=True)
class StopRequest:
    """Set by Ctrl-C or SIGTERM; the running step is finished and saved first."""

    raised: bool = False

    def listen(self) -> None:
        signal.signal(signal.SIGINT, self._raise)
        signal.signal(signal.SIGTERM, self._raise)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self.raised = True


def main() -> None:
    arguments = _arguments()
    console = Console()
    torch.manual_seed(arguments.seed)
    tokenizer = bpe.train(arguments.vocabulary)
    trainer, held_out = _prepare(arguments, tokenizer, console)
    stop = StopRequest()
    stop.listen()
    _run(trainer, held_out, arguments, tokenizer, stop, console)
    if stop.raised:
        console.print(f"stopped after {trainer.steps} steps; the same command continues from here")
        return
    export(trainer.model, tokenizer, arguments.out)
    console.print(f"wrote {arguments.out}")


def _prepare(
    arguments: argparse.Namespace, tokenizer: bpe.PreTrainedTokenizerFast, console: Console
) -> tuple[Trainer, dict[str, Windows]]:
    """The trainer, resumed where there is a checkpoint, and the held-out windows of each domain."""
    console.print("building the corpus")
    domains = {name: tokenise(tokenizer, name, "train", arguments.dialogues) for name in DOMAINS}
    console.print("training tokens: " + ", ".join(f"{name} {len(tokens):,}" for name, tokens in domains.items()))
    held_out = {
        name: fixed_windows(tokenise(tokenizer, name, "held_out", _HELD_OUT_DIALOGUES), arguments.length, _HELD_OUT_WINDOWS)
        for name in DOMAINS
    }
    shape = Architecture(arguments.layers, arguments.hidden, arguments.heads, arguments.intermediate)
    model = shape.build(tokenizer).to("cuda" if torch.cuda.is_available() else "cpu")
    console.print(f"{sum(p.numel() for p in model.parameters()):,} parameters on {model.device}")
    mixture = Mixture(domains, arguments.length, arguments.seed)
    budget: Budget = Steps(arguments.steps) if arguments.steps else Minutes(arguments.minutes)
    trainer = Trainer(model, mixture, budget, arguments.windows, arguments.micro_batch)
    checkpoint = arguments.work / "checkpoint.pt"
    if checkpoint.exists():
        trainer.load(checkpoint)
        console.print(f"continuing after {trainer.steps} steps")
    return trainer, held_out


def _run(
    trainer: Trainer,
    held_out: dict[str, Windows],
    arguments: argparse.Namespace,
    tokenizer: bpe.PreTrainedTokenizerFast,
    stop: StopRequest,
    console: Console,
) -> None:
    """Train until the budget is used up or a stop is requested; evaluate and save on the way and at the end."""

    def keep() -> None:
        losses = trainer.held_out_losses(held_out)
        shown = "  ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
        console.print(f"[{time.strftime('%H:%M:%S')}] step {trainer.steps}  {trainer.fraction:.1%}  loss {smooth:.3f}  held out: {shown}")
        trainer.save(arguments.work / "checkpoint.pt")
        export(trainer.model, tokenizer, arguments.snapshot)

    smooth = 0.0
    saved_at = time.monotonic()
    columns = (BarColumn(), TextColumn("{task.percentage:>5.1f} %  {task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=1.0)
        while trainer.fraction < 1.0 and not stop.raised:
            began = time.monotonic()
            loss = trainer.step()
            smooth = _SMOOTHING * smooth + (1 - _SMOOTHING) * loss if smooth else loss
            speed = trainer.tokens_per_step / (time.monotonic() - began)
            progress.update(bar, completed=trainer.fraction, description=f"step {trainer.steps}  loss {smooth:.3f}  {speed:,.0f} tokens/s")
            if trainer.steps == arguments.first_save or time.monotonic() - saved_at > arguments.save_minutes * 60:
                keep()
                saved_at = time.monotonic()
        keep()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo.train_base", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = Architecture()
    parser.add_argument("--minutes", type=float, default=120.0, help="length of the run; the learning rate follows it (120)")
    parser.add_argument("--steps", type=int, help="length of the run in steps instead, reproducible to the bit")
    parser.add_argument("--layers", type=int, default=sizes.layers)
    parser.add_argument("--hidden", type=int, default=sizes.hidden)
    parser.add_argument("--heads", type=int, default=sizes.heads)
    parser.add_argument("--intermediate", type=int, default=sizes.intermediate)
    parser.add_argument("--vocabulary", type=int, default=bpe.VOCABULARY_SIZE)
    parser.add_argument("--length", type=int, default=1024, help="tokens in a training window (1024)")
    parser.add_argument("--windows", type=int, default=4, help="windows in an optimiser step (4)")
    parser.add_argument("--micro-batch", type=int, default=2, help="windows in one pass (2)")
    parser.add_argument("--dialogues", type=int, default=20_000, help="dialogues to generate per generated domain (20000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-minutes", type=float, default=5.0, help="minutes between checkpoints (5)")
    parser.add_argument("--first-save", type=int, default=100, help="also save after this many steps (100)")
    parser.add_argument("--work", type=Path, default=Path(".cache/demo-base"), help="where checkpoints live (.cache/demo-base)")
    parser.add_argument("--snapshot", type=Path, default=Path(".cache/demo-base/snapshot"), help="exported at every checkpoint")
    parser.add_argument("--out", type=Path, default=Path("demo/base"), help="exported when the run is over (demo/base)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
