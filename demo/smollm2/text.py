"""Prompts over a text of a few sentences: rewrite, translate, find, put into JSON; and calls of functions."""

from __future__ import annotations

from demo.smollm2.choice import Choice, Message, asked, system, words

_CALL = "Call one of these functions. Answer with JSON: name and arguments.\n"


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
