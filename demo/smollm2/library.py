"""Prompts over the docstrings of the running Python's standard library, read when they are asked for."""

from __future__ import annotations

import importlib
import inspect
import warnings
from functools import cache
from itertools import chain

from demo.smollm2.choice import Choice, Message, asked, words

_SHORTEST, _LONGEST = 60, 1000
"""Characters of a docstring."""


def about_text(choice: Choice) -> list[Message]:
    name, signature, text = choice.subject(docstrings())
    return asked(choice.wording(words("library")["about_text"]).format(name=name, signature=signature, text=text))


def from_memory(choice: Choice) -> list[Message]:
    name, signature, _ = choice.subject(docstrings())
    return asked(choice.wording(words("library")["from_memory"]).format(name=name, signature=signature))


def body(choice: Choice) -> str:
    """A prompt without a chat: a signature and its docstring, the body to be written."""
    name, signature, text = choice.subject([entry for entry in docstrings() if entry[1]])
    indented = text.replace("\n", "\n    ")
    return f'def {name.rpartition(".")[2]}{signature}:\n    """{indented}"""\n'


@cache
def docstrings() -> tuple[tuple[str, str, str], ...]:
    """(dotted name, signature or nothing, docstring) of public functions, classes and methods; each docstring once."""
    found: dict[str, tuple[str, str, str]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # to look at what is deprecated is to be warned of it
        for name, thing in chain.from_iterable(map(_things, words("library")["modules"])):
            text = inspect.getdoc(thing) or ""
            if _SHORTEST <= len(text) <= _LONGEST and "object at 0x" not in text:
                found.setdefault(text, (name, _signature(thing), text))
    return tuple(sorted(found.values()))


def _things(module: str) -> list[tuple[str, object]]:
    functions: list[tuple[str, object]] = []
    for name, thing in sorted(vars(importlib.import_module(module)).items()):
        if not name.startswith("_") and (inspect.isroutine(thing) or inspect.isclass(thing)):
            functions.append((f"{module}.{name}", thing))
        if not name.startswith("_") and inspect.isclass(thing) and thing.__module__ == module:
            methods = sorted(vars(thing).items())
            functions += [(f"{module}.{name}.{m}", f) for m, f in methods if m[0] != "_" and inspect.isroutine(f)]
    return functions


def _signature(thing: object) -> str:
    try:
        signature = str(inspect.signature(thing))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    return signature if " at 0x" not in signature else ""
