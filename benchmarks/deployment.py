"""The datastore that a deployment of the demo would have: what its users may ask about, and what was said before.

Nothing in it is made from a benchmark's prompt: code and dialogues are those of the training split, and of the prompts
there are only the passages that their questions are about, as wherever retrieval feeds a model. Stock
phrases of an answer, up to a chat's whole list of steps, may stand in a training chat in the same words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.prompts import PROMPTS
from demo.corpus.mixture import texts
from services.cli.jobs import datastore
from services.datastores.builder import BuildParameters
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.target.identity import tokenizer_cid

_DIALOGUES = 2000  # of each kind


def build_store(model: Path, folder: Path) -> tuple[Datastore, dict[str, Any]]:
    """As `kolm corpus build` makes it, in `folder`; also what it holds, for the results."""
    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    held = {}
    for name, found in documents(_DIALOGUES).items():
        lines = [json.dumps({"text": text}) + "\n" for text in found]
        (corpus / f"{name}.jsonl").write_text("".join(lines))
        held[name] = len(lines)
    manifest = datastore.build([corpus], [], model, folder / "store", BuildParameters(), None)
    store = Datastore.open(folder / "store", model, tokenizer_cid(model))
    return store, {"documents": held, "tokens": manifest.tokens, "cid": manifest.cid}


def documents(dialogues: int) -> dict[str, Iterator[str]]:
    """Texts by what they are, `dialogues` of each kind."""
    return {
        "training files of the standard library": texts("code", "train", 0),
        "training dialogues with tool calls": texts("tools", "train", dialogues),
        "training dialogues about passages": texts("passages", "train", dialogues),
        "training chats": texts("chat", "train", dialogues),
        "passages that the prompts ask about": passages_asked_about(),
    }


def passages_asked_about() -> Iterator[str]:
    """Of a passages prompt the passage alone: its longest paragraph; questions are a line."""
    for line in (PROMPTS / "passages.jsonl").read_text().splitlines():
        text = json.loads(line)["messages"][0]["content"]
        yield max(text.removeprefix("Passage:\n").split("\n\n"), key=len)
