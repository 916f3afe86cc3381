"""The evaluation as Markdown: one table, and a few answers to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.toy.build_prompts import Case

_SAMPLES = (0, 21)
"""Numbers of the prompts whose answers are shown: fixed, so that nobody picks the good ones."""
_SHOWN_OF_PROMPT = 420
"""Characters, counted from the prompt's end."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer; `repeated` and `copied` are shares of its 4-grams."""

    case: Case
    text: str
    tokens: int
    repeated: float
    copied: float
    verdicts: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class DomainResult:
    """`loss` is over all held-out tokens, `assistant_loss` over what the assistant says, both in nats a token."""

    domain: str
    loss: float
    assistant_loss: float
    repeated_in_references: float
    answers: Sequence[Answer]

    @property
    def repeated(self) -> float:
        return self._weighted([answer.repeated for answer in self.answers])

    @property
    def copied(self) -> float:
        return self._weighted([answer.copied for answer in self.answers])

    @property
    def mean_length(self) -> float:
        """Tokens an answer."""
        return sum(answer.tokens for answer in self.answers) / len(self.answers)

    def _weighted(self, shares: Sequence[float]) -> float:
        """Mean over the answers, each weighted by its length."""
        lengths = [answer.tokens for answer in self.answers]
        return sum(share * length for share, length in zip(shares, lengths, strict=True)) / sum(lengths)


def markdown(results: Sequence[DomainResult]) -> str:
    return "\n\n".join([_table(results), _verdict_table(results), *(_samples(result) for result in results)])


def replace_section(file: Path, section: str, program: str = "demo.toy.evaluate") -> None:
    """Put `section` between the program's markers in the file; ValueError where they are missing."""
    begin, end = (f"<!-- {word}: python -m {program} -->" for word in ("begin", "end"))
    text = file.read_text(encoding="utf-8")
    if begin not in text or end not in text:
        raise ValueError(f"{file} has no {begin} ... {end}")
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    file.write_text(f"{before}{begin}\n\n{section}\n\n{end}{after}", encoding="utf-8")


def _table(results: Sequence[DomainResult]) -> str:
    head = (
        "| domain | loss | loss, assistant | repeated 4-grams, greedy | repeated 4-grams, reference "
        "| 4-grams copied from the prompt | tokens an answer |\n|---|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(
        f"| {r.domain} | {r.loss:.3f} | {r.assistant_loss:.3f} | {r.repeated:.1%} "
        f"| {r.repeated_in_references:.1%} | {r.copied:.1%} | {r.mean_length:.0f} |"
        for r in results
    )


def _verdict_table(results: Sequence[DomainResult]) -> str:
    rows = ["| what | answers | of |", "|---|---|---|"]
    for result in results:
        for name in dict.fromkeys(name for answer in result.answers for name in answer.verdicts):
            asked = [answer.verdicts[name] for answer in result.answers if name in answer.verdicts]
            rows.append(f"| {result.domain}: {name} | {sum(asked)} | {len(asked)} |")
    return "\n".join(rows)


def _samples(result: DomainResult) -> str:
    shown = [_sample(result.answers[number]) for number in _SAMPLES if number < len(result.answers)]
    return f"### {result.domain}\n\n" + "\n\n".join(shown)


def _sample(answer: Answer) -> str:
    prompt = answer.case.text[-_SHOWN_OF_PROMPT:]
    cut = "…" if len(answer.case.text) > _SHOWN_OF_PROMPT else ""
    return f"The prompt ends:\n\n````text\n{cut}{prompt}\n````\n\nThe model goes on:\n\n````text\n{answer.text}\n````"
