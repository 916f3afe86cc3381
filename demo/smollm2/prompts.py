"""The prompts of the head of SmolLM2-135M-Instruct: `python -m demo.smollm2.prompts --out FOLDER`.

`train.jsonl` to learn from, and a file a domain under `held-out/`, over subjects of their own, to measure on. They are
made of word lists, and of the documentation of the Python that runs this; the committed head's are of Python 3.11.7.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from demo.smollm2 import code, knowledge, library, maths, text
from demo.smollm2.choice import Choice, Message, Split

Builder = Callable[[Choice], list[Message] | str]

DOMAINS: dict[str, dict[Builder, int]] = {
    "code": {code.write: 12, code.explain: 8, code.fix: 5, code.complete: 4},
    "library": {library.about_text: 7, library.from_memory: 8, library.body: 4},
    "knowledge": {knowledge.question: 13, knowledge.advice: 6},
    "dialogue": {knowledge.dialogue: 8},
    "text": {text.rewrite: 6, text.find: 6, text.translate: 4},
    "json": {text.as_json: 4, text.call: 4},
    "maths": {maths.problem: 6},
}
"""The kinds of prompts in each domain, in shares of all prompts."""
_COUNT = 40_000
_HELD_OUT = 32
"""Prompts of a domain to measure on."""
_TRIES = 20


def prompts(split: Split, domain: str, count: int, without: frozenset[str] = frozenset()) -> Iterator[dict[str, Any]]:
    """At most `count` different lines for `kolm heads train --prompts`, the same ones every time.

    `without` are contents, as JSON, of prompts that are left out: not every template has room for a subject.
    """
    seen = set(without)
    for number in range(_TRIES * count):
        if len(seen) == count + len(without):
            return
        rng = Random(f"smollm2/{split}/{domain}/{number}")
        build = rng.choices(list(DOMAINS[domain]), list(DOMAINS[domain].values()))[0]
        made = build(Choice(rng, split))
        line: dict[str, Any] = {"prompt": made} if isinstance(made, str) else {"messages": made}
        if (content := json.dumps(line)) not in seen:
            seen.add(content)
            yield {"id": f"{split}-{domain}-{number:05}", "domain": domain, **line}


def write(folder: Path, count: int) -> None:
    (folder / "held-out").mkdir(parents=True, exist_ok=True)
    whole = sum(sum(shares.values()) for shares in DOMAINS.values())
    train: list[dict[str, Any]] = []
    for domain, shares in DOMAINS.items():
        train += prompts("train", domain, round(count * sum(shares.values()) / whole))
    known = frozenset(
        json.dumps({name: line[name] for name in ("messages", "prompt") if name in line}) for line in train
    )
    for domain in DOMAINS:
        _write(folder / "held-out" / f"{domain}.jsonl", list(prompts("held_out", domain, _HELD_OUT, known)))
    _write(folder / "train.jsonl", train)


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    print(f"{path}: {len(lines)} prompts")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.smollm2.prompts", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--count", type=int, default=_COUNT, help=f"prompts to learn from ({_COUNT})")
    arguments = parser.parse_args()
    write(arguments.out, arguments.count)


if __name__ == "__main__":
    main()
