"""Write `demo/toy/prompts/*.jsonl` from held-out material: `python -m demo.toy.build_prompts`.

The dialogues come out the same everywhere. The code prompts are excerpts of the running Python's library, so they
come out the same under the Python version that README.md names.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from transformers import PreTrainedTokenizerFast

from demo.toy import tokenizer as bpe
from demo.toy.corpus import chat, code_prefix, passages, tools
from demo.toy.corpus.dialogue import Dialogue, render
from demo.toy.corpus.mixture import DOMAINS

PER_DOMAIN = 144
LONGEST_PROMPT = 400
"""Tokens, the chat template's own included."""
_SHORTEST_QUOTATION = 30
"""Tokens in the reference answer of a passages prompt: the answer has to copy at length."""
_CALL_SHARE = 0.6
"""Share of tools prompts that surely ask for a call; the others ask for a call or for the sentence after its result."""
_CANDIDATES = 400


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt, rendered and as messages (none for code), and the answer that its source has (empty for code)."""

    id: str
    domain: str
    text: str
    messages: Dialogue
    reference: str

    def record(self) -> dict[str, Any]:
        """The prompt as a line of its file; the reference answer is left out."""
        shown: dict[str, Any] = {"id": self.id, "domain": self.domain}
        if not self.messages:
            return shown | {"prompt": self.text}
        return shown | {"messages": [{"role": m.role, "content": m.content} for m in self.messages]}


def cases(domain: str, tokenizer: PreTrainedTokenizerFast) -> list[Case]:
    """The domain's prompts in the order of their file."""
    if domain == "code":
        prefixes = code_prefix.prefixes(tokenizer, PER_DOMAIN)
        return [Case(f"code-{number:03}", "code", text, (), "") for number, text in enumerate(prefixes)]
    chosen = islice(_dialogues(domain, tokenizer), PER_DOMAIN)
    return [
        Case(f"{domain}-{number:03}", domain, render(messages, add_generation_prompt=True), messages, answer)
        for number, (messages, answer) in enumerate(chosen)
    ]


def main() -> None:
    arguments = _arguments()
    tokenizer = bpe.load(arguments.model)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for domain in DOMAINS:
        lines = [json.dumps(case.record(), ensure_ascii=False) for case in cases(domain, tokenizer)]
        (arguments.out / f"{domain}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        print(f"{domain}: {len(lines)} prompts")


def _dialogues(domain: str, tokenizer: PreTrainedTokenizerFast) -> Iterator[tuple[Dialogue, str]]:
    """Held-out dialogues that fit, cut before an assistant turn, and that turn."""
    builders = {"tools": tools.documents, "passages": passages.documents, "chat": chat.documents}
    for index, dialogue in enumerate(builders[domain]("held_out", _CANDIDATES)):
        cut = _cut(domain, dialogue, Random(f"prompts/{domain}/{index}"))
        messages, answer = dialogue[:cut], dialogue[cut].content
        if _tokens(tokenizer, render(messages, add_generation_prompt=True)) > LONGEST_PROMPT:
            continue
        if domain == "passages" and _tokens(tokenizer, answer) < _SHORTEST_QUOTATION:
            continue
        yield messages, answer


def _cut(domain: str, dialogue: Dialogue, rng: Random) -> int:
    """The index of the assistant turn that is left to the model."""
    turns = [index for index, message in enumerate(dialogue) if message.role == "assistant"]
    if domain == "passages":
        return turns[0]
    if domain == "tools" and rng.random() < _CALL_SHARE:
        turns = [index for index in turns if dialogue[index - 1].role == "user"]
    # A chat's opening turn is the shortest and tells least.
    return rng.choice(turns[1:] if domain == "chat" else turns)


def _tokens(tokenizer: PreTrainedTokenizerFast, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False))


def _arguments() -> argparse.Namespace:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(
        prog="python -m demo.toy.build_prompts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, default=here / "base", help="whose tokenizer counts (demo/toy/base)")
    parser.add_argument("--out", type=Path, default=here / "prompts", help="folder to write to (demo/toy/prompts)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
