"""Measure the bundled base model: `python -m demo.toy.evaluate`.

Held-out loss per domain, then greedy answers to every prompt of `demo/toy/prompts/`. The numbers and a few answers are
written into README.md between its two markers.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from demo.toy import tokenizer as bpe
from demo.toy.build_prompts import Case, cases
from demo.toy.corpus.mixture import DOMAINS, Tokens, fixed_windows, tokenise
from demo.toy.measures import (
    call_faults,
    copied_share,
    offered_tools,
    quotes_exactly,
    quotes_the_right_part,
    repeated_share,
)
from demo.toy.report import Answer, DomainResult, markdown, replace_section
from demo.toy.trainer import token_weights

_HELD_OUT_DIALOGUES = 400
_WINDOWS = 48
_WINDOW = 512
_NEW_TOKENS = 128
_PIECES = 96


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A loaded model and how many prompts of each domain to answer."""

    model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast
    prompts: int

    def of(self, domain: str) -> DomainResult:
        chosen = cases(domain, self.tokenizer)[: self.prompts]
        answers = [self._answer(case) for case in track(chosen, f"{domain:<9}")]
        held_out = tokenise(self.tokenizer, domain, "held_out", _HELD_OUT_DIALOGUES)
        everything, assistant = self._losses(held_out)
        return DomainResult(domain, everything, assistant, self._repeated_in_references(chosen, held_out), answers)

    @torch.no_grad()
    def _losses(self, held_out: Tokens) -> tuple[float, float]:
        """Mean loss in nats a token: of all tokens, and of those that count in full in training."""
        windows = torch.from_numpy(fixed_windows(held_out, _WINDOW, _WINDOWS)).to(self.model.device)
        losses = torch.stack([self._token_losses(window) for window in windows])
        is_assistant = token_weights(windows[:, :-1]) == 1.0
        return losses.mean().item(), losses[is_assistant].mean().item()

    def _token_losses(self, window: torch.Tensor) -> torch.Tensor:
        logits = self.model(input_ids=window[None, :-1], use_cache=False).logits[0]
        return F.cross_entropy(logits.float(), window[1:], reduction="none")

    def _repeated_in_references(self, chosen: list[Case], held_out: Tokens) -> float:
        """The share of repeated 4-grams in what the sources have in the answers' place.

        For code, which has no reference answers: in pieces of held-out files as long as an answer.
        """
        references = [self.tokenizer.encode(case.reference) for case in chosen if case.reference]
        if not references:
            references = fixed_windows(held_out, _NEW_TOKENS - 1, _PIECES).tolist()
        grams = [max(len(tokens) - 3, 0) for tokens in references]
        shares = [repeated_share(tokens) for tokens in references]
        return sum(share * count for share, count in zip(shares, grams, strict=True)) / sum(grams)

    def _answer(self, case: Case) -> Answer:
        prompt = self.tokenizer.encode(case.text, add_special_tokens=False)
        tokens = self._greedy(prompt)
        text = str(self.tokenizer.decode(tokens, skip_special_tokens=True))
        return Answer(
            case=case,
            text=text,
            tokens=len(tokens),
            repeated=repeated_share(tokens),
            copied=copied_share(tokens, prompt),
            verdicts=dict(_verdicts(case, text)),
        )

    @torch.no_grad()
    def _greedy(self, prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt], device=self.model.device)
        output = self.model.generate(  # type: ignore[misc]
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=_NEW_TOKENS, do_sample=False
        )
        generated: list[int] = output[0, len(prompt) :].tolist()
        return generated


def main() -> None:
    arguments = _arguments()
    console = Console()
    tokenizer = bpe.load(arguments.model)
    model = LlamaForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    evaluation = Evaluation(model, tokenizer, arguments.prompts)
    section = markdown([evaluation.of(domain) for domain in DOMAINS])
    console.print(section, markup=False, highlight=False)
    if arguments.readme:
        replace_section(arguments.readme, section)
        console.print(f"wrote {arguments.readme}")


def _verdicts(case: Case, answer: str) -> Iterator[tuple[str, bool]]:
    """The yes-or-no questions that apply to an answer."""
    if case.domain == "tools" and case.messages[-1].role == "user":
        yield "call follows its schema", not call_faults(answer, offered_tools(case.messages[0].content))
        yield "call equals the reference", answer == case.reference
    if case.domain == "passages":
        yield "quotes word for word", quotes_exactly(answer, case.messages[-1].content)
        yield "quotes the part asked for", quotes_the_right_part(answer, case.reference)


def _arguments() -> argparse.Namespace:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(
        prog="python -m demo.toy.evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=here / "base", help="a model folder (demo/toy/base)")
    parser.add_argument("--prompts", type=int, default=64, help="prompts to answer per domain (64)")
    parser.add_argument("--readme", type=Path, help="also write the numbers into this file, between its markers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
