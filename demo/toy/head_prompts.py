"""Prompts that the demo head is trained on, from the training split: `python -m demo.toy.head_prompts --out FOLDER`.

Dialogues are cut before an assistant turn, as in `demo.toy.build_prompts`, which does the same to held-out ones.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from transformers import PreTrainedTokenizerFast

from demo.toy import tokenizer as bpe
from demo.toy.build_prompts import LONGEST_PROMPT
from demo.toy.corpus import chat, code_prefix, passages, tools
from demo.toy.corpus.dialogue import Dialogue, render

SHARES = {"code": 0.15, "tools": 0.40, "passages": 0.20, "chat": 0.25}
"""Of the prompts, not of the tokens: an answer in code is three times as long as a tool call."""
_DIALOGUES = 20_000
"""The training split has as many of each kind (`demo.toy.train_base --dialogues`)."""


def entries(domain: str, tokenizer: PreTrainedTokenizerFast, count: int) -> list[dict[str, Any]]:
    """At most `count` prompts of the training split, as lines for `kolm heads train --prompts`."""
    if domain == "code":
        texts = code_prefix.prefixes(tokenizer, count, "train")
        return [{"id": f"train-code-{n:05}", "domain": "code", "prompt": text} for n, text in enumerate(texts)]
    shown = islice(_dialogues(domain, tokenizer), count)
    return [
        {"id": f"train-{domain}-{n:05}", "domain": domain, "messages": [_message(m.role, m.content) for m in messages]}
        for n, messages in enumerate(shown)
    ]


def write(folder: Path, tokenizer: PreTrainedTokenizerFast, count: int) -> list[Path]:
    """One file a domain, `count` prompts together; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_write_domain(folder, domain, tokenizer, round(count * share)) for domain, share in SHARES.items()]


def _write_domain(folder: Path, domain: str, tokenizer: PreTrainedTokenizerFast, count: int) -> Path:
    path = folder / f"{domain}.jsonl"
    lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries(domain, tokenizer, count)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def _dialogues(domain: str, tokenizer: PreTrainedTokenizerFast) -> Iterator[Dialogue]:
    """Dialogues of the training split up to an assistant turn, those that are short enough."""
    builders = {"tools": tools.documents, "passages": passages.documents, "chat": chat.documents}
    for index, dialogue in enumerate(builders[domain]("train", _DIALOGUES)):
        turns = [number for number, message in enumerate(dialogue) if message.role == "assistant"]
        messages = dialogue[: Random(f"head/{domain}/{index}").choice(turns)]
        if len(tokenizer.encode(render(messages, add_generation_prompt=True))) <= LONGEST_PROMPT:
            yield messages


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def main() -> None:
    arguments = _arguments()
    for path in write(arguments.out, bpe.load(arguments.model), arguments.count):
        print(path)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo.toy.head_prompts", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=Path(__file__).parent / "base", help="whose tokenizer counts")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to, one file a domain")
    parser.add_argument("--count", type=int, default=16_000, help="prompts, all domains together (16000)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
