"""Beginnings of code to complete: a file's imports, some of its definitions, and the start of one more."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from transformers import PreTrainedTokenizerFast

from demo.toy.corpus import code
from demo.toy.corpus.dialogue import Split

_SHORTEST, _LONGEST = 100, 300
"""Tokens in a prefix."""
_MOST_CHARACTERS_A_TOKEN = 16
"""On average over a prefix; the library's code has about 3."""
_PER_FILE = 9
_IMPORT_LINES = 8

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Place:
    """A definition in a file; `header` is the first line of the class of a method, newline included."""

    node: Function | ast.ClassDef
    header: str | None

    @property
    def first_line(self) -> int:
        """0-based, decorators included."""
        return min([self.node.lineno, *(d.lineno for d in self.node.decorator_list)]) - 1


def prefixes(tokenizer: PreTrainedTokenizerFast, count: int, split: Split = "held_out") -> list[str]:
    """`count` prefixes, taken in turns from the files of `split` so that no file prevails."""
    columns = [list(_of_file(path, tokenizer)) for path in code.files(split)]
    rows = [column[row] for row in range(_PER_FILE) for column in columns if row < len(column)]
    if len(rows) < count:
        raise ValueError(f"the {split} files of this Python give {len(rows)} prefixes, {count} were asked for")
    return rows[:count]


def _of_file(path: Path, tokenizer: PreTrainedTokenizerFast) -> Iterator[str]:
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    places = list(_places(ast.parse(source), lines))
    functions = [i for i, place in enumerate(places) if isinstance(place.node, Function) and len(place.node.body) > 1]
    rng = Random(f"code/{path.name}")
    rng.shuffle(functions)
    found = (_prefix(lines, places, index, rng, tokenizer) for index in functions)
    for number, prefix in enumerate(p for p in found if p is not None):
        if number == _PER_FILE:
            return
        yield prefix


def _places(module: ast.Module, lines: list[str]) -> Iterator[Place]:
    """Top-level definitions and the methods of top-level classes, in reading order."""
    for node in module.body:
        if isinstance(node, Function | ast.ClassDef):
            yield Place(node, None)
        if isinstance(node, ast.ClassDef):
            header = lines[node.lineno - 1]
            yield from (Place(member, header) for member in node.body if isinstance(member, Function))


def _prefix(
    lines: list[str], places: list[Place], index: int, rng: Random, tokenizer: PreTrainedTokenizerFast
) -> str | None:
    """The longest context that fits before the cut inside function `index`; None where it is too short."""
    node = places[index].node
    end = node.body[rng.randrange(len(node.body))].lineno - 1
    imports = _imports(lines)
    for place in places[: index + 1]:
        header = place.header or ""
        # No newline at the end: the tokenizer joins it with the indentation that follows.
        text = (imports + "\n\n" + header + "".join(lines[place.first_line : end])).strip()
        if len(text) > _LONGEST * _MOST_CHARACTERS_A_TOKEN:  # no need to count; most contexts of a long file end here
            continue
        length = len(tokenizer.backend_tokenizer.encode(text).ids)
        if length <= _LONGEST:
            return text if length >= _SHORTEST else None
    return None


def _imports(lines: list[str]) -> str:
    """The file's first plain import lines."""
    found = [
        line for line in lines if line.startswith(("import ", "from ")) and not line.rstrip().endswith(("(", "\\", ","))
    ]
    return "".join(found[:_IMPORT_LINES])
