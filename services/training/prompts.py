"""Prompts, and a model's answers to them on disk. Imports no torch: datastores are built from answers, too."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from services.generation.engine.text.tokenizer import Tokenizer


class TrainingError(Exception):
    """A run cannot start or continue; the message names the problem, the expected value and the remedy."""


class PromptsInvalid(TrainingError):
    """A prompt file is missing, or a line of it is not a prompt; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as token ids. `id` is unique in a run; `domain` groups the figures of an evaluation."""

    id: str
    domain: str
    tokens: tuple[int, ...]


def read_prompts(paths: Sequence[Path], tokenizer: Tokenizer, longest: int) -> list[Prompt]:
    """All prompts of the files with at most `longest` tokens, in order.

    A line is an object with `prompt` (text) or `messages` (role and content), and may have `id` and `domain`; the
    default domain is the file's name.

    Raises:
        PromptsInvalid: a file is missing, a line is not a prompt, an id is not unique, or nothing is left.
    """
    prompts = [prompt for path in paths for prompt in _of_file(path, tokenizer)]
    _check_ids(prompts)
    kept = [prompt for prompt in prompts if len(prompt.tokens) <= longest]
    if not kept:
        found = f"{len(prompts)} prompts, all longer than {longest} tokens" if prompts else "no prompts"
        raise PromptsInvalid(f"{', '.join(map(str, paths))}: {found}; expected JSON lines with prompt or messages")
    return kept


def _of_file(path: Path, tokenizer: Tokenizer) -> Iterator[Prompt]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # a string may hold every other separator of lines
    except FileNotFoundError as error:
        raise PromptsInvalid(f"{path}: no such file; expected JSON lines with prompt or messages") from error
    except (OSError, UnicodeDecodeError) as error:
        raise PromptsInvalid(f"{path}: not readable as UTF-8 text: {error}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _of_line(path, number, line, tokenizer)


class _Function(msgspec.Struct):
    name: str
    arguments: Any


class _Call(msgspec.Struct):
    function: _Function


class _Turn(msgspec.Struct):
    role: str
    content: str
    tool_calls: list[_Call] = []


class _Line(msgspec.Struct):
    prompt: str | None = None
    messages: list[_Turn] | None = None
    id: str | None = None
    domain: str | None = None


def _of_line(path: Path, number: int, line: str, tokenizer: Tokenizer) -> Prompt:
    where = f"{path}, line {number}"
    try:
        entry = msgspec.json.decode(line, type=_Line)
        if (entry.prompt is None) == (entry.messages is None):
            raise ValueError("expected either prompt, a string, or messages, a list")
        if not (entry.prompt or entry.messages):  # whose only token could be the one that begins every text
            raise ValueError("prompt or messages is empty; expected a text, or at least one message")
        if entry.prompt:
            tokens = tokenizer.encode(entry.prompt)
        else:  # decoded again, because a chat template may read other members too
            tokens = tokenizer.encode_chat(msgspec.json.decode(line)["messages"])
    except (ValueError, RecursionError) as error:
        raise PromptsInvalid(f"{where}: {error}") from error
    if not tokens:
        raise PromptsInvalid(f"{where}: the prompt is empty; expected at least one token")
    return Prompt(entry.id or f"{path.stem}-{number:06}", entry.domain or path.stem, tuple(tokens))


def _check_ids(prompts: list[Prompt]) -> None:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise PromptsInvalid(f"id: {prompt.id!r} comes twice; ids have to be unique over all files")
        seen.add(prompt.id)


@dataclass(frozen=True, slots=True)
class Answer:
    """The target's answer to a prompt at a temperature. `id` is unique in a run."""

    id: str
    domain: str
    temperature: float
    prompt: tuple[int, ...]
    output: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.output


class AnswerFile:
    """Answers on disk, appended as they come. A line that a crash cut short is dropped when the file is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists():
            self._drop_partial_line()

    def __iter__(self) -> Iterator[Answer]:
        if self.path.exists():
            with self.path.open(encoding="utf-8") as lines:
                yield from (msgspec.json.decode(line, type=Answer) for line in lines)

    def append(self, answers: Iterable[Answer]) -> None:
        with self.path.open("ab") as file:
            file.writelines(msgspec.json.encode(answer) + b"\n" for answer in answers)

    def _drop_partial_line(self) -> None:
        with self.path.open("rb+") as file:
            content = file.read()
            os.ftruncate(file.fileno(), content.rfind(b"\n") + 1)
