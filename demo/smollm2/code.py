"""Prompts about code: write, explain, fix, complete."""

from __future__ import annotations

from demo.smollm2.choice import Choice, Message, asked, words


def write(choice: Choice) -> list[Message]:
    known = words("code")
    language, more = choice.wording(known["languages"]), choice.wording(known["additions"])
    wanted = choice.wording(known["write"])
    return asked(wanted.format(language=language, task=choice.subject(known["tasks"]), more=more).strip())


def explain(choice: Choice) -> list[Message]:
    wanted = choice.wording(words("code")["explain"])
    return asked(wanted.format(code=_fenced(choice, _filled(choice, choice.wording(words("code")["snippets"])))))


def fix(choice: Choice) -> list[Message]:
    broken = choice.wording(words("code")["broken"])
    wanted = choice.wording(words("code")["fix"])
    return asked(wanted.format(code=_fenced(choice, _filled(choice, broken["code"])), what=broken["what"]))


def complete(choice: Choice) -> list[Message]:
    lines = _filled(choice, choice.wording(words("code")["snippets"])).rstrip().splitlines()
    kept = lines[: choice.rng.randint(1, max(1, len(lines) - 1))]
    return asked(choice.wording(words("code")["complete"]).format(code=_fenced(choice, "\n".join(kept) + "\n")))


def _filled(choice: Choice, code: str) -> str:
    known = words("code")
    noun, field = choice.subject([(noun, field) for noun in known["nouns"] for field in known["fields"]])
    return code.format(n=noun, N=noun.capitalize(), f=field, k=choice.rng.randint(2, 99))


def _fenced(choice: Choice, code: str) -> str:
    return f"```{choice.wording(('', 'python'))}\n{code}```"
