"""The prompts of the head of SmolLM2-135M-Instruct: `python -m demo.smollm2.prompts --out FOLDER`.

`train.jsonl` to learn from, and a file a domain under `held-out/`, over subjects of their own, to measure on. They are
made of the word lists in `words.toml`, and of the documentation of the Python that runs this, read when it is asked
for; the committed head's are of Python 3.11.7.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import tomllib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeVar

Message = dict[str, str]
Split = Literal["train", "held_out"]
Item = TypeVar("Item")

_HELD_OUT = 10
"""One subject in this many is held out."""

_SHORTEST, _LONGEST = 60, 1000
"""Characters of a docstring."""

_CALL = "Call one of these functions. Answer with JSON: name and arguments.\n"
_COUNT = 40_000

_MEASURED = 32
"""Prompts of a domain to measure on."""

_TRIES = 20


@dataclass(frozen=True, slots=True)
class Choice:
    """Draws what one prompt is made of. A subject of the held-out split occurs in no prompt of the training split."""

    rng: Random
    split: Split

    def subject(self, subjects: Sequence[Item]) -> Item:
        """One of the words of this split."""
        return self.rng.choice([each for each in subjects if is_held_out(each) == (self.split == "held_out")])

    def wording(self, wordings: Sequence[Item]) -> Item:
        """Any wording: both splits have the same wordings."""
        return self.rng.choice(wordings)


def is_held_out(subject: object) -> bool:
    return sha256(repr(subject).encode()).digest()[0] % _HELD_OUT == 0


@cache
def words(part: str) -> dict[str, Any]:
    """Lists of words and templates by name."""
    document = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
    return dict(document[part])


def asked(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def write_code(choice: Choice) -> list[Message]:
    known = words("code")
    language, more = choice.wording(known["languages"]), choice.wording(known["additions"])
    wanted = choice.wording(known["write"])
    return asked(wanted.format(language=language, task=choice.subject(known["tasks"]), more=more).strip())


def explain(choice: Choice) -> list[Message]:
    wanted = choice.wording(words("code")["explain"])
    return asked(wanted.format(code=_fenced(choice, _filled_code(choice, choice.wording(words("code")["snippets"])))))


def fix(choice: Choice) -> list[Message]:
    broken = choice.wording(words("code")["broken"])
    wanted = choice.wording(words("code")["fix"])
    return asked(wanted.format(code=_fenced(choice, _filled_code(choice, broken["code"])), what=broken["what"]))


def complete(choice: Choice) -> list[Message]:
    lines = _filled_code(choice, choice.wording(words("code")["snippets"])).rstrip().splitlines()
    kept = lines[: choice.rng.randint(1, max(1, len(lines) - 1))]
    return asked(choice.wording(words("code")["complete"]).format(code=_fenced(choice, "\n".join(kept) + "\n")))


def _filled_code(choice: Choice, code: str) -> str:
    known = words("code")
    noun, field = choice.subject([(noun, field) for noun in known["nouns"] for field in known["fields"]])
    return code.format(n=noun, N=noun.capitalize(), f=field, k=choice.rng.randint(2, 99))


def _fenced(choice: Choice, code: str) -> str:
    return f"```{choice.wording(('', 'python'))}\n{code}```"


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


def question(choice: Choice) -> list[Message]:
    return asked(_question(choice))


def advice(choice: Choice) -> list[Message]:
    return asked(_advice(choice))


def dialogue(choice: Choice) -> list[Message]:
    """Two to three turns of a person, with or without a system prompt; the model's earlier turns are set ones."""
    known = words("knowledge")
    turns = asked(_question(choice) if choice.rng.random() < 0.5 else _advice(choice))
    for _ in range(choice.rng.randint(1, 2)):
        turns += [assistant(choice.wording(known["replies"])), *asked(choice.wording(known["follow_ups"]))]
    return [system(choice.wording(known["systems"])), *turns] if choice.rng.random() < 0.5 else turns


def _question(choice: Choice) -> str:
    known = words("knowledge")
    wanted = choice.wording(known["questions"])
    return str(wanted.format(topic=choice.subject(known["topics"]), other=choice.subject(known["topics"])))


def _advice(choice: Choice) -> str:
    known = words("knowledge")
    return str(choice.wording(known["advice"]).format(aim=choice.subject(known["aims"])))


def problem(choice: Choice) -> list[Message]:
    known, rng = words("maths"), choice.rng
    first, second = rng.sample(known["names"], 2)
    numbers = {"x": rng.randint(12, 96), "y": rng.randint(2, 30), "z": rng.randint(2, 9)}
    wanted, thing = choice.wording(known["problems"]), choice.wording(known["things"])
    hour, large = rng.randint(6, 18), rng.randint(100, 900)
    text = wanted.format(a=first, b=second, t=thing, h=hour, big=large, **numbers)
    return asked(f"{text} {choice.wording(known['additions'])}".strip())


def rewrite(choice: Choice) -> list[Message]:
    wanted = choice.wording(words("text")["rewrite"])
    return asked(wanted.format(text=_passage(choice, 1, 3), name=choice.wording(words("maths")["names"])))


def translate(choice: Choice) -> list[Message]:
    wanted, language = choice.wording(words("text")["translate"]), choice.wording(words("text")["languages"])
    return asked(wanted.format(language=language, text=_passage(choice, 1, 2)))


def find(choice: Choice) -> list[Message]:
    text, second = _passage(choice, 3, 7), _passage(choice, 2, 4)
    wanted = choice.wording(words("text")["find"])
    return asked(wanted.format(text=text, second=second, place=choice.wording(words("text")["places"])))


def as_json(choice: Choice) -> list[Message]:
    known = words("text")
    if choice.rng.random() < 0.3:
        return asked(_filled(choice, choice.wording(known["records"])))
    shape = choice.wording(known["shapes"])
    return asked(choice.wording(known["json"]).format(shape=shape, text=_passage(choice, 1, 4)))


def call(choice: Choice) -> list[Message]:
    """A few functions to choose from, and something to be done with one of them."""
    functions = words("text")["functions"]
    wanted = choice.wording(functions)
    others = choice.rng.sample(functions, choice.rng.randint(1, 3))
    offered = {each["name"]: each["parameter"] for each in [wanted, *others]}
    lines = [f'{{"name": "{name}", "parameters": {{"{offered[name]}": "string"}}}}' for name in sorted(offered)]
    return [system(_CALL + "\n".join(lines)), *asked(_filled(choice, wanted["request"]))]


def _passage(choice: Choice, least: int, most: int) -> str:
    sentences = []
    for _ in range(choice.rng.randint(least, most)):
        sentences.append(_filled(choice, choice.wording(words("text")["events"])))
        if choice.rng.random() < 0.5:
            sentences.append(choice.wording(words("text")["reasons"]))
    return " ".join(sentences)


def _filled(choice: Choice, text: str) -> str:
    known, rng = words("text"), choice.rng
    return text.format(
        name=choice.wording(words("maths")["names"]),
        place=choice.wording(known["places"]),
        time=choice.wording(known["times"]),
        city=choice.wording(known["cities"]),
        number=rng.randint(3, 480),
        hour=f"{rng.randint(7, 21)}:{rng.choice(('00', '30'))}",
    )


Builder = Callable[[Choice], list[Message] | str]

DOMAINS: dict[str, dict[Builder, int]] = {
    "code": {write_code: 12, explain: 8, fix: 5, complete: 4},
    "library": {about_text: 7, from_memory: 8, body: 4},
    "knowledge": {question: 13, advice: 6},
    "dialogue": {dialogue: 8},
    "text": {rewrite: 6, find: 6, translate: 4},
    "json": {as_json: 4, call: 4},
    "maths": {problem: 6},
}
"""The kinds of prompts in each domain, in shares of all prompts."""


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
        _write(folder / "held-out" / f"{domain}.jsonl", list(prompts("held_out", domain, _MEASURED, known)))
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
