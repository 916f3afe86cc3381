"""Questions about the world, advice, and dialogues about both."""

from __future__ import annotations

from demo.smollm2.choice import Choice, Message, asked, said, system, words


def question(choice: Choice) -> list[Message]:
    return asked(_question(choice))


def advice(choice: Choice) -> list[Message]:
    return asked(_advice(choice))


def dialogue(choice: Choice) -> list[Message]:
    """Two to three turns of a person, with or without a system prompt; the model's earlier turns are set ones."""
    known = words("knowledge")
    turns = asked(_question(choice) if choice.rng.random() < 0.5 else _advice(choice))
    for _ in range(choice.rng.randint(1, 2)):
        turns += [said(choice.wording(known["replies"])), *asked(choice.wording(known["follow_ups"]))]
    return [system(choice.wording(known["systems"])), *turns] if choice.rng.random() < 0.5 else turns


def _question(choice: Choice) -> str:
    known = words("knowledge")
    wanted = choice.wording(known["questions"])
    return str(wanted.format(topic=choice.subject(known["topics"]), other=choice.subject(known["topics"])))


def _advice(choice: Choice) -> str:
    known = words("knowledge")
    return str(choice.wording(known["advice"]).format(aim=choice.subject(known["aims"])))
