"""Domain `chat`: conversations between a customer and a support agent, several turns each."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from demo.toy.corpus import names
from demo.toy.corpus.dialogue import Dialogue, Message, Split
from demo.toy.corpus.products import Problem, Product, products

_SYSTEMS = (
    "You are a patient support agent of {brand}.",
    "You work for {brand}. Help the customer step by step.",
    "You answer customers of {brand} politely and briefly. Your name is {agent}.",
    "You are {agent} from the {brand} help desk.",
)
_HELLOS = ("Hello, ", "Hi, ", "Good morning, ", "Hi there. ", "", "", "Hello! ", "Excuse me, ")
_COMPLAINTS = (
    "I have a {brand} {kind} ({model}) and {symptom}.",
    "since {day} {symptom}. It is the {kind} {model}.",
    "my {kind} {model} has a problem: {symptom}.",
    "{symptom}. I bought the {kind} in {place} in {month}.",
    "can you help me with my {kind}? The trouble is that {symptom}.",
)
_SORRY = (
    "I am sorry to hear that. {question}",
    "Thank you for contacting {brand}. {question}",
    "That must be annoying. So that I can help: {question}",
    "Let us find out what is wrong with your {kind}. {question}",
    "Thanks for the details about your {model}. {question}",
)
_FIRST_STEPS = (
    "Thank you. Please {step}. Tell me whether that helps.",
    "I see. In that case, please {step}.",
    "All right. The first thing to try: {step}.",
    "Thanks, that helps. Could you {step}?",
)
_NEXT_STEPS = (
    "I understand. Then please {step}.",
    "Let us try something else: {step}.",
    "That is a pity. As a next step, {step}.",
    "No problem, there is one more thing. Please {step}.",
)
_FAILURES = (
    "I did that, but {symptom} as before.",
    "No change, sorry.",
    "That did not help. Still the same: {symptom}.",
    "Done. It was better for {minutes} minutes, then it came back.",
    "Okay, I tried it twice. Nothing.",
)
_SUCCESSES = (
    "That did it, thank you!",
    "It works now. Great!",
    "Yes, the {kind} is fine again.",
    "Wonderful, that was the problem.",
    "Looks good now, thanks {agent}.",
)
_CLOSINGS = (
    "I am glad that it works. Your case number is {case}, in case you need us again.",
    "You are welcome. I have closed case {case}. Enjoy your {kind}!",
    "Happy to help. If it comes back, please mention {case}.",
    "Great! Have a nice {day}.",
)
_ESCALATIONS = (
    "Then the {kind} should be looked at. I have opened case {case} and a technician will call you"
    " on {date} at {time}.",
    "I will send you a new {kind}. Please put the old one into the same box; the return number is {case}.",
    "In that case I would like to replace it. You will get a message at {email} with the label {case}.",
)
_RECAPS = (
    "Can you sum up what I should do if it happens again?",
    "Please list the steps once more.",
    "Could you repeat all of that in one message?",
)


def documents(split: Split, count: int) -> Iterator[Dialogue]:
    """`count` dialogues; the n-th of a split is always the same one."""
    for index in range(count):
        yield _dialogue(Random(f"chat/{split}/{index}"))


def _dialogue(rng: Random) -> Dialogue:
    product = rng.choice(products())
    problem = rng.choice(product.problems)
    slots = _slots(rng, product, problem)
    turns = [
        Message("system", rng.choice(_SYSTEMS).format(**slots)),
        *_opening(rng, slots),
        *_repair(rng, problem, slots),
    ]
    if rng.random() < 0.4:
        turns += _recap(rng, problem)
    return tuple(turns)


def _slots(rng: Random, product: Product, problem: Problem) -> dict[str, str]:
    """The order of the keys is the order of the draws."""
    return {
        "brand": names.stem(rng),
        "kind": product.kind,
        "model": names.code_number(rng),
        "symptom": rng.choice(problem.symptoms),
        "question": problem.question,
        "agent": names.first_name(rng),
        "place": names.place(rng),
        "case": names.code_number(rng),
        "month": rng.choice(names.MONTHS),
        "day": rng.choice(names.WEEKDAYS),
        "date": names.date(rng),
        "time": names.clock(rng),
        "email": names.email(rng),
        "minutes": str(rng.randint(3, 50)),
    }


def _opening(rng: Random, slots: dict[str, str]) -> list[Message]:
    complaint = rng.choice(_COMPLAINTS).format(**slots)
    return [
        Message("user", _sentence(rng.choice(_HELLOS) + complaint)),
        Message("assistant", rng.choice(_SORRY).format(**slots)),
    ]


def _repair(rng: Random, problem: Problem, slots: dict[str, str]) -> list[Message]:
    """Steps are tried in order until one helps, or until none is left."""
    helpful = rng.randint(1, len(problem.steps) + 1)
    turns = [Message("user", _sentence(rng.choice(problem.answers) + "."))]
    for number, step in enumerate(problem.steps[:helpful], start=1):
        lead = rng.choice(_FIRST_STEPS if number == 1 else _NEXT_STEPS)
        turns.append(Message("assistant", lead.format(step=step)))
        reply = rng.choice(_SUCCESSES if number == helpful else _FAILURES).format(**slots)
        turns.append(Message("user", _sentence(reply)))
    last = _CLOSINGS if helpful <= len(problem.steps) else _ESCALATIONS
    return [*turns, Message("assistant", rng.choice(last).format(**slots))]


def _recap(rng: Random, problem: Problem) -> list[Message]:
    listed = "\n".join(f"{number}. {_sentence(step)}." for number, step in enumerate(problem.steps, start=1))
    lead = rng.choice(("Of course:", "Gladly. These are the steps:", "Sure, in this order:"))
    return [Message("user", rng.choice(_RECAPS)), Message("assistant", f"{lead}\n{listed}")]


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
