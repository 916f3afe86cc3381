"""Measure the bundled head: `python -m demo.toy.evaluate_head`.

Every prompt of `demo/toy/prompts/` is answered by the engine, with speculation off and with chains of four drafted by
the head, none cut short because it would not pay. The figures are written into README.md between its two markers.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

from benchmarks.prompts import DOMAINS, load_prompts
from demo.toy.report import replace_section
from services.generation.drafting.eagle3.drafter import Eagle3Drafter
from services.generation.drafting.eagle3.loading import load_head
from services.generation.engine.core import EngineCore
from services.generation.engine.cost import PassCost
from services.generation.engine.events import Event, Finished, Outcome
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.settings import EngineSettings
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.loading import load_target
from services.generation.target.target import Target

_K = 4
_NEW_TOKENS = 128
_SEED = 7
_TEMPERATURES = (0.0, 0.7, 1.0)
_ALL_PAYS = PassCost.line(fixed=1e9, row=1.0)  # seconds: a token is worth any number of rows


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one domain at one temperature; `accepted` counts, by depth, the drafts accepted that far."""

    domain: str
    temperature: float
    tokens: int
    passes: int
    drafts: int
    accepted: tuple[int, ...]
    identical: bool

    @property
    def mean_length(self) -> float:
        """Of a pass that verified a draft, the target's own token included: 1 + accepted / drafts, as vLLM counts."""
        return 1 + sum(self.accepted) / self.drafts

    @property
    def tokens_a_pass(self) -> float:
        """As receipts have it: the prefill, which emits one token, is a pass too."""
        return self.tokens / self.passes

    def row(self) -> str:
        shares = [f"{count / self.drafts:.0%}" for count in self.accepted]
        figures = [f"{self.temperature:g}", f"{self.tokens:,}", f"{self.mean_length:.2f}", f"{self.tokens_a_pass:.2f}"]
        return f"| {' | '.join([self.domain, *figures, *shares, 'yes' if self.identical else 'NO'])} |"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A loaded base with its head, and how many prompts of each domain to answer."""

    target: Target
    drafter: Eagle3Drafter
    tokenizer: Tokenizer
    prompts: int

    def of(self, domain: str, temperature: float) -> Figures:
        known = load_prompts(domain, self.tokenizer, self.prompts)
        off, drafted = (self._answers(known, method, temperature) for method in ("off", "eagle3"))
        metrics = [outcome.metrics for outcome in drafted]
        columns = [metric.num_accepted_tokens_per_pos + (0,) * _K for metric in metrics]
        return Figures(
            domain,
            temperature,
            sum(metric.output_tokens for metric in metrics),
            sum(metric.target_passes for metric in metrics),
            sum(metric.num_drafts for metric in metrics),
            tuple(sum(column[depth] for column in columns) for depth in range(_K)),
            [outcome.stream_digest for outcome in off] == [outcome.stream_digest for outcome in drafted],
        )

    def _answers(self, prompts: Sequence[Sequence[int]], method: str, temperature: float) -> list[Outcome]:
        outcomes: dict[str, Outcome] = {}

        def sink(event: Event) -> None:
            if isinstance(event, Finished):
                outcomes[event.request_id] = event.outcome

        core = EngineCore(
            self.target, {"eagle3": self.drafter}, self.tokenizer.stream, _ALL_PAYS, EngineSettings(), lambda: 0.0
        )
        sampling = SamplingParams(temperature=temperature, seed=_SEED, max_tokens=_NEW_TOKENS)
        for number, prompt in enumerate(prompts):
            asked = EngineRequest(
                f"{number:04}",
                tuple(prompt),
                sampling,
                method=method,
                k=_K,
                parameters={"tree_width": 1, "tree_tokens": _K},
            )
            core.add(asked, sink)
        while not core.idle:
            core.step()
        return [outcomes[name] for name in sorted(outcomes)]


def markdown(figures: Sequence[Figures]) -> str:
    head = "| domain | temperature | tokens | mean length | tokens a pass |"
    depths = "".join(f" depth {depth} |" for depth in range(1, _K + 1))
    line = "|---" * (6 + _K) + "|"
    return "\n".join([f"{head}{depths} same as off |", line, *(each.row() for each in figures)])


def main() -> None:
    arguments = _arguments()
    console = Console()
    target = load_target(arguments.model)
    drafter = Eagle3Drafter(load_head(arguments.head, target.config), target, _ALL_PAYS)
    evaluation = Evaluation(target, drafter, Tokenizer(arguments.model), arguments.prompts)
    asked = [(domain, temperature) for temperature in arguments.temperatures for domain in DOMAINS]
    section = markdown([evaluation.of(*each) for each in track(asked, "answering", console=console)])
    console.print(section, markup=False, highlight=False, soft_wrap=True)
    if arguments.readme:
        replace_section(arguments.readme, section, "demo.toy.evaluate_head")
        console.print(f"wrote {arguments.readme}")


def _arguments() -> argparse.Namespace:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(
        prog="python -m demo.toy.evaluate_head",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, default=here / "base", help="the base (demo/toy/base)")
    parser.add_argument("--head", type=Path, default=here / "head", help="the head (demo/toy/head)")
    parser.add_argument("--prompts", type=int, default=64, help="prompts to answer per domain (64)")
    parser.add_argument("--temperatures", type=float, nargs="+", default=_TEMPERATURES, help="(0 0.7 1)")
    parser.add_argument("--readme", type=Path, help="also write the figures into this file, between its markers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
