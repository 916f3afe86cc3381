"""Train the head of the bundled base: `python -m demo.toy.train_head --minutes 40`.

The base answers prompts of the training split, and the head learns to predict it. The same as `kolm heads train` with
the settings below. Stop it with Ctrl-C and start it again with the same arguments: it continues where it was.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from demo.toy import head_prompts
from demo.toy import tokenizer as bpe
from demo.toy.build_prompts import LONGEST_PROMPT
from services.cli.failures.exits import CommandError
from services.cli.jobs.heads import training
from services.cli.terminal.output import data, talk
from services.cli.views.heads.training import acceptance_table
from services.training.budget import Minutes, Steps
from services.training.devices import end_process
from services.training.job import Job
from services.training.plan import DataPlan, LessonPlan

FEATURE_LAYERS = (2, 6, 9)
"""Low, middle, high, as EAGLE-3 has it; 1, 6, 11 and 1, 2, 6, 9, 11 were no better after 30,000 starts."""
DRAFT_VOCABULARY = 2048
"""Half of the base's, 99 % of what it says: the output matrix is the largest of the head's."""
_INTERMEDIATE = 704
_STEPS_UNROLLED = 6
_LONGEST_ANSWER = 128


def main() -> int:
    arguments = _arguments()
    try:
        found = training.run(_job(arguments), "cpu" if arguments.cpu else None)
    except CommandError as error:
        print(f"{error.message}", file=sys.stderr)
        return error.exit_code
    if found is None:
        talk().print("stopped; the same command continues from here")
    elif found:
        data().print(acceptance_table(found))
        data().print(f"wrote {arguments.out}")
    end_process()
    return 0


def _job(arguments: argparse.Namespace) -> Job:
    return Job(
        base=arguments.base,
        prompts=tuple(_prompts(arguments)),
        out=arguments.out,
        work=arguments.work,
        budget=Steps(arguments.steps) if arguments.steps else Minutes(arguments.minutes),
        data=DataPlan(
            max_tokens=_LONGEST_ANSWER,
            longest_prompt=LONGEST_PROMPT,
            held_out=0.02,
            seed=arguments.seed,
        ),
        lesson=LessonPlan(
            steps_unrolled=_STEPS_UNROLLED,
            starts_per_pass=arguments.starts,
            passes_per_step=arguments.passes,
            seed=arguments.seed,
        ),
        sizes=None if arguments.start_from else _SIZES,
        start_from=arguments.start_from,
        answering_minutes=arguments.answering_minutes,
        save_minutes=arguments.save_minutes,
        k=4,
    )


_SIZES = {
    "feature_layers": FEATURE_LAYERS,
    "draft_vocab_size": DRAFT_VOCABULARY,
    "intermediate_size": _INTERMEDIATE,
}


def _prompts(arguments: argparse.Namespace) -> list[Path]:
    """Made once for a run; they depend on the count, the corpus and the tokenizer alone."""
    folder: Path = arguments.work / f"prompts-{arguments.prompts}"
    paths = [folder / f"{domain}.jsonl" for domain in head_prompts.SHARES]
    if all(path.exists() for path in paths):
        return paths
    talk().print("building the prompts")
    return head_prompts.write(folder, bpe.load(arguments.base), arguments.prompts)


def _arguments() -> argparse.Namespace:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(
        prog="python -m demo.toy.train_head", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=40.0, help="of training; the learning rate follows them (40)")
    parser.add_argument("--steps", type=int, help="a number of steps instead, reproducible to the bit")
    parser.add_argument("--answering-minutes", type=float, default=15.0, help="let the base answer for so long (15)")
    parser.add_argument("--prompts", type=int, default=16_000, help="prompts, all domains together (16000)")
    parser.add_argument("--starts", type=int, default=256, help="draft starts in one pass (256)")
    parser.add_argument("--passes", type=int, default=1, help="passes in an optimiser step (1)")
    parser.add_argument("--start-from", type=Path, help="a head of a former base to go on from")
    parser.add_argument("--base", type=Path, default=here / "base", help="the base (demo/toy/base)")
    parser.add_argument("--work", type=Path, default=Path(".cache/demo-head"), help="answers, checkpoint, latest head")
    parser.add_argument("--out", type=Path, default=here / "head", help="the head (demo/toy/head); must not exist")
    parser.add_argument("--save-minutes", type=float, default=3.0, help="minutes between checkpoints (3)")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU even where there is a CUDA device")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
