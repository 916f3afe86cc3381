"""Problems in words, with numbers drawn for each."""

from __future__ import annotations

from demo.smollm2.choice import Choice, Message, asked, words


def problem(choice: Choice) -> list[Message]:
    known, rng = words("maths"), choice.rng
    first, second = rng.sample(known["names"], 2)
    numbers = {"x": rng.randint(12, 96), "y": rng.randint(2, 30), "z": rng.randint(2, 9)}
    wanted, thing = choice.wording(known["problems"]), choice.wording(known["things"])
    hour, large = rng.randint(6, 18), rng.randint(100, 900)
    text = wanted.format(a=first, b=second, t=thing, h=hour, big=large, **numbers)
    return asked(f"{text} {choice.wording(known['additions'])}".strip())
