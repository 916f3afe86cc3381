"""Train the bundled base model: `python -m demo.toy.train_base --minutes 80`.

Runs on CUDA where there is a device and on the CPU otherwise. Stop it with Ctrl-C and start it again with the same
arguments: it continues from its last checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.console import Console
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from demo.toy import tokenizer as bpe
from demo.toy.architecture import Architecture
from demo.toy.corpus.mixture import DOMAINS, Mixture, fixed_windows, tokenise
from demo.toy.export import export
from demo.toy.threads import PoliteThreads
from demo.toy.trainer import Batch, DrillPlan, Trainer, Windows
from demo.toy.training_run import Run, Saving
from services.training.budget import Budget, Minutes, Steps

_HELD_OUT_DIALOGUES = 400
_HELD_OUT_WINDOWS = 6


def main() -> None:
    arguments = _arguments()
    console = Console()
    torch.manual_seed(arguments.seed)
    tokenizer = _tokenizer(arguments)
    console.print("building the corpus")
    trainer = _trainer(arguments, tokenizer, console)
    saving = Saving(_checkpoint(arguments), arguments.snapshot, arguments.first_save, arguments.save_minutes)
    threads = PoliteThreads() if arguments.polite else None
    run = Run(trainer, tokenizer, _held_out(arguments, tokenizer), saving, console, threads)
    if run.to_the_end():
        export(trainer.model, tokenizer, arguments.out)
        console.print(f"wrote {arguments.out}")
    else:
        console.print(f"stopped after {trainer.steps} steps; the same command continues from here")


def _tokenizer(arguments: argparse.Namespace) -> PreTrainedTokenizerFast:
    """The one that is asked for, or this run's own: trained at its start, kept for its continuation."""
    given = arguments.tokenizer or arguments.start_from
    if given:
        return bpe.load(given)
    kept = arguments.work / "tokenizer"
    if not kept.exists():
        bpe.train(arguments.vocabulary).save_pretrained(kept)
    return bpe.load(kept)


def _trainer(arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerFast, console: Console) -> Trainer:
    """A new trainer, or one that continues from the checkpoint where there is one."""
    domains = {name: tokenise(tokenizer, name, "train", arguments.dialogues) for name in DOMAINS}
    console.print("training tokens: " + ", ".join(f"{name} {len(tokens):,}" for name, tokens in domains.items()))
    model = _model(arguments, tokenizer)
    model.to(device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))  # type: ignore[call-arg]
    console.print(f"{sum(p.numel() for p in model.parameters()):,} parameters on {model.device}")
    mixture = Mixture(domains, arguments.length, arguments.seed)
    budget: Budget = Steps(arguments.steps) if arguments.steps else Minutes(arguments.minutes)
    batch = Batch(arguments.windows, arguments.micro_batch)
    trainer = Trainer(model, mixture, budget, batch, DrillPlan(arguments.drill_steps, arguments.drill_every))
    if _checkpoint(arguments).exists():
        trainer.load(_checkpoint(arguments))
        console.print(f"continuing after {trainer.steps} steps")
    return trainer


def _model(arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A fresh one, or a float32 copy of the one that the run goes on from."""
    if arguments.start_from:
        return LlamaForCausalLM.from_pretrained(arguments.start_from, dtype=torch.float32)
    return Architecture(arguments.layers, arguments.hidden, arguments.heads, arguments.intermediate).build(tokenizer)


def _held_out(arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerFast) -> dict[str, Windows]:
    tokens = {name: tokenise(tokenizer, name, "held_out", _HELD_OUT_DIALOGUES) for name in DOMAINS}
    return {name: fixed_windows(row, arguments.length, _HELD_OUT_WINDOWS) for name, row in tokens.items()}


def _checkpoint(arguments: argparse.Namespace) -> Path:
    work: Path = arguments.work
    return work / "checkpoint.pt"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo.toy.train_base", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    length = parser.add_argument_group("length of the run")
    length.add_argument("--minutes", type=float, default=120.0, help="the learning rate follows them (120)")
    length.add_argument("--steps", type=int, help="a number of steps instead, reproducible to the bit")
    length.add_argument("--polite", action="store_true", help="use one CPU thread while others keep the cores busy")
    _add_sizes(parser)
    data = parser.add_argument_group("data")
    data.add_argument("--length", type=int, default=512, help="tokens in a training window (512)")
    data.add_argument("--windows", type=int, default=4, help="windows in an optimiser step (4)")
    data.add_argument("--micro-batch", type=int, default=4, help="windows in one pass (4)")
    data.add_argument("--drill-steps", type=int, default=300, help="steps of copying drill to begin with (300)")
    data.add_argument("--drill-every", type=int, default=10, help="then text retold in one step of so many (10)")
    data.add_argument("--dialogues", type=int, default=20_000, help="dialogues per generated domain (20000)")
    data.add_argument("--tokenizer", type=Path, help="a folder with the tokenizer to use; without it, one is trained")
    data.add_argument("--seed", type=int, default=0)
    files = parser.add_argument_group("files")
    files.add_argument(
        "--start-from", type=Path, help="a finished model of this recipe to go on from, and its tokenizer"
    )
    files.add_argument("--save-minutes", type=float, default=5.0, help="minutes between checkpoints (5)")
    files.add_argument("--first-save", type=int, default=100, help="also save after this many steps (100)")
    files.add_argument("--work", type=Path, default=Path(".cache/demo-base"), help="checkpoints (.cache/demo-base)")
    files.add_argument("--snapshot", type=Path, default=Path(".cache/demo-base/snapshot"), help="latest export")
    files.add_argument("--out", type=Path, default=Path("demo/toy/base"), help="export of the whole run")
    return parser.parse_args()


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    default = Architecture()
    sizes = parser.add_argument_group("sizes of the model")
    sizes.add_argument("--layers", type=int, default=default.layers)
    sizes.add_argument("--hidden", type=int, default=default.hidden)
    sizes.add_argument("--heads", type=int, default=default.heads)
    sizes.add_argument("--intermediate", type=int, default=default.intermediate)
    sizes.add_argument("--vocabulary", type=int, default=bpe.VOCABULARY_SIZE)


if __name__ == "__main__":
    main()
