"""Prompts to train on: read from JSON lines, checked, and split into what is trained on and what is held out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.generation.engine.text.tokenizer import Tokenizer
from services.training.plan import PromptsInvalid


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as token ids. `id` is unique in a run; `domain` groups the figures of an evaluation."""

    id: str
    domain: str
    tokens: tuple[int, ...]


def read_prompts(paths: Sequence[Path], tokenizer: Tokenizer, longest: int) -> list[Prompt]:
    """All prompts of the files, in order; those longer than `longest` tokens are left out.

    A line is an object with `prompt` (text) or `messages` (role and content), and may have `id` and `domain`; a file's
    name stands in for a domain that is not given.

    Raises:
        PromptsInvalid: a file is missing, a line is no prompt, an id comes twice, or nothing is left.
    """
    prompts = [prompt for path in paths for prompt in _of_file(path, tokenizer)]
    _check_ids(prompts)
    kept = [prompt for prompt in prompts if len(prompt.tokens) <= longest]
    if not kept:
        found = f"{len(prompts)} prompts, all longer than {longest} tokens" if prompts else "no prompts"
        raise PromptsInvalid(f"{', '.join(map(str, paths))}: {found}; expected JSON lines with prompt or messages")
    return kept


def split(prompts: Iterable[Prompt], share: float, seed: int) -> tuple[list[Prompt], list[Prompt]]:
    """(to train on, held out). A prompt's side depends on its tokens and the seed: its twins go the same way."""
    sides: tuple[list[Prompt], list[Prompt]] = [], []
    for prompt in prompts:
        sides[_draw(prompt.tokens, seed) < share].append(prompt)
    return sides


def _draw(tokens: tuple[int, ...], seed: int) -> float:
    """In [0, 1), the same for the same tokens and seed."""
    digest = hashlib.sha256(f"{seed}:{','.join(map(str, tokens))}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _of_file(path: Path, tokenizer: Tokenizer) -> Iterator[Prompt]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise PromptsInvalid(f"{path}: no such file; expected JSON lines with prompt or messages") from error
    except (OSError, UnicodeDecodeError) as error:
        raise PromptsInvalid(f"{path}: not readable as UTF-8 text: {error}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _of_line(path, number, line, tokenizer)


def _of_line(path: Path, number: int, line: str, tokenizer: Tokenizer) -> Prompt:
    where = f"{path}, line {number}"
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise PromptsInvalid(f"{where}: not JSON: {error}") from error
    if not isinstance(entry, dict):
        raise PromptsInvalid(f"{where}: expected an object with prompt or messages, found {type(entry).__name__}")
    tokens = _tokens(where, entry, tokenizer)
    if not tokens:
        raise PromptsInvalid(f"{where}: the prompt is empty; expected at least one token")
    identifier, domain = entry.get("id", f"{path.stem}-{number:06}"), entry.get("domain", path.stem)
    if not isinstance(identifier, str) or not isinstance(domain, str):
        raise PromptsInvalid(f"{where}: id and domain have to be strings")
    return Prompt(identifier, domain, tuple(tokens))


def _tokens(where: str, entry: dict[str, Any], tokenizer: Tokenizer) -> list[int]:
    messages, text = entry.get("messages"), entry.get("prompt")
    if isinstance(messages, list) and text is None:
        try:
            return tokenizer.encode_chat(messages)
        except ValueError as error:
            raise PromptsInvalid(f"{where}: messages: {error}") from error
    if isinstance(text, str) and messages is None:
        return tokenizer.encode(text)
    raise PromptsInvalid(f"{where}: expected either prompt, a string, or messages, a list")


def _check_ids(prompts: list[Prompt]) -> None:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise PromptsInvalid(f"id: {prompt.id!r} comes twice; ids have to be unique over all files")
        seen.add(prompt.id)
