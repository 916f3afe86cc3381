"""Domain `passages`: questions about a passage whose answers quote the passage at length, word for word.

Two kinds of passage: invented ones, full of names and numbers that can only be copied, and pages of the Python
reference that ship with the standard library (PSF licence).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random

from demo.toy.corpus import names
from demo.toy.corpus.dialogue import Dialogue, Message, Split
from demo.toy.corpus.topics import topics

_DOCUMENTATION_SHARE = 0.25
_HELD_OUT_PAGES = 8
"""One page of the reference in this many is held out."""

_ABOUT = (
    "What does the passage say about {}?",
    "What do we learn about {}? Quote the passage.",
    "Quote what the text says about {}.",
    "Find the part about {} and quote it word for word.",
    "I want to know about {}. Please answer with a quotation.",
)
_BOTH = (
    "Quote what is said about {} and about {}.",
    "What does the text say about {}, and what about {}? Use quotations.",
    "Please quote the sentences on {} and on {}.",
)
_MENTION = (
    'Quote the sentence that mentions "{}".',
    'Which sentence contains "{}"? Quote it in full.',
    'Where does the text speak of "{}"? Give the exact words.',
)
_ONWARDS = (
    'Quote the text from "{}" to the end.',
    'Repeat everything from "{}" onwards, word for word.',
    'Starting at "{}", copy the rest of the passage.',
)
_LEADS = (
    'The passage says: "{}"',
    'According to the passage: "{}"',
    'It says: "{}"',
    'The text states: "{}"',
    'Here is the quotation: "{}"',
)
_BOTH_LEADS = (
    'About {}, the passage says: "{}" About {}, it says: "{}"',
    'On {}: "{}" On {}: "{}"',
)
_ORDERS = (
    "Read the passage and answer with exact quotations.\n\n{passage}\n\n{question}",
    "{passage}\n\nQuestion: {question}",
    "Passage:\n{passage}\n\n{question}",
    "{question}\n\n{passage}",
)


@dataclass(frozen=True, slots=True)
class Passage:
    """Sentences in reading order; `about[i]` completes a question about sentence i.

    `about` is empty where nothing but the sentences' own words can be asked for.
    """

    sentences: tuple[str, ...]
    about: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


def documents(split: Split, count: int) -> Iterator[Dialogue]:
    """`count` dialogues; the n-th of a split is always the same one."""
    for index in range(count):
        yield _dialogue(Random(f"passages/{split}/{index}"), split)


def _dialogue(rng: Random, split: Split) -> Dialogue:
    passage = _reference_page(rng, split) if rng.random() < _DOCUMENTATION_SHARE else _invented(rng)
    question, answer = _ask(rng, passage)
    first = rng.choice(_ORDERS).format(passage=passage.text, question=question)
    turns = [Message("user", first), Message("assistant", answer)]
    for _ in range(rng.randint(1, 4)):
        question, answer = _ask(rng, passage)
        turns += [Message("user", question), Message("assistant", answer)]
    return tuple(turns)


def _ask(rng: Random, passage: Passage) -> tuple[str, str]:
    """A question and its answer; the longer kinds of quotation are drawn often, because copying is what is taught."""
    kind = rng.random()
    if kind < 0.2:
        return _ask_onwards(rng, passage)
    if not passage.about or kind < 0.35:
        return _ask_mention(rng, passage)
    if kind < 0.65:
        return _ask_both(rng, passage)
    index = rng.randrange(len(passage.sentences))
    # The sentence after the one asked for often belongs to the answer; it makes the quotation longer.
    quoted = " ".join(passage.sentences[index : index + rng.choice((1, 1, 2))])
    return rng.choice(_ABOUT).format(passage.about[index]), rng.choice(_LEADS).format(quoted)


def _ask_both(rng: Random, passage: Passage) -> tuple[str, str]:
    first, second = rng.sample(range(len(passage.sentences)), 2)
    question = rng.choice(_BOTH).format(passage.about[first], passage.about[second])
    answer = rng.choice(_BOTH_LEADS).format(
        passage.about[first], passage.sentences[first], passage.about[second], passage.sentences[second]
    )
    return question, answer


def _ask_mention(rng: Random, passage: Passage) -> tuple[str, str]:
    sentence = rng.choice(passage.sentences)
    words = sentence.rstrip(".").split()
    width = min(len(words), rng.choice((2, 3)))
    start = rng.randrange(len(words) - width + 1)
    return rng.choice(_MENTION).format(" ".join(words[start : start + width])), rng.choice(_LEADS).format(sentence)


def _ask_onwards(rng: Random, passage: Passage) -> tuple[str, str]:
    """From the opening words of one of the later sentences to the end."""
    index = rng.randrange(max(0, len(passage.sentences) - 5), len(passage.sentences))
    rest = " ".join(passage.sentences[index:])
    return rng.choice(_ONWARDS).format(" ".join(rest.split()[:4])), rng.choice(_LEADS).format(rest)


def _invented(rng: Random) -> Passage:
    topic = rng.choice(topics())
    slots = _slots(rng)
    slots["n"] = rng.choice(topic.names).format(**slots)
    opening, *others = topic.facts
    facts = [opening, *rng.sample(others, rng.randint(3, len(others)))]
    sentences = [rng.choice(fact.sentences).format(**(slots | _fresh(rng))) for fact in facts]
    return Passage(tuple(_capitalised(s) for s in sentences), tuple(f.about.format(**slots) for f in facts))


def _slots(rng: Random) -> dict[str, str]:
    lasting = {
        "p": names.person(rng),
        "q": names.person(rng),
        "l": names.place(rng),
        "m": names.place(rng),
        "y": names.year(rng),
    }
    return lasting | _fresh(rng)


def _fresh(rng: Random) -> dict[str, str]:
    """Slots that differ from sentence to sentence."""
    return {
        "w": names.stem(rng),
        "q": names.person(rng),
        "m": names.place(rng),
        "z": names.year(rng),
        "c": names.count(rng),
        "d": str(rng.randint(2, 99)),
        "t": names.date(rng),
    }


def _capitalised(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def _reference_page(rng: Random, split: Split) -> Passage:
    """A run of 3 to 7 sentences of one page."""
    sentences = rng.choice(reference_sentences(split))
    length = rng.randint(3, 7)
    start = rng.randrange(max(1, len(sentences) - length + 1))
    return Passage(_shortened(sentences[start : start + length]), ())


def _shortened(sentences: tuple[str, ...], longest: int = 900) -> tuple[str, ...]:
    """Leading sentences of at most `longest` characters together, and at least one."""
    total = 0
    kept: list[str] = []
    for sentence in sentences:
        total += len(sentence)
        if kept and total > longest:
            break
        kept.append(sentence)
    return tuple(kept)


@cache
def reference_sentences(split: Split) -> tuple[tuple[str, ...], ...]:
    """The prose of every page of the language reference that belongs to `split`.

    Some sections stand on two pages: what a held-out page says is taken out of the training pages.
    """
    from pydoc_data.topics import topics as text_by_page

    pages = [_prose(text_by_page[page]) for page in sorted(text_by_page)]
    held_out = pages[::_HELD_OUT_PAGES]
    if split == "train":
        secret = {sentence for page in held_out for sentence in page}
        train = (page for number, page in enumerate(pages) if number % _HELD_OUT_PAGES)
        chosen = [tuple(sentence for sentence in page if sentence not in secret) for page in train]
    else:
        chosen = held_out
    return tuple(page for page in chosen if len(page) >= 3)


def _prose(page: str) -> tuple[str, ...]:
    """Sentences of a page's paragraphs, without headings, grammar and code."""
    paragraphs = [" ".join(p.split()) for p in page.split("\n\n") if re.match(r"\s{0,3}[A-Z]", p)]
    sentences = [s for p in paragraphs if p.endswith(".") for s in re.split(r"(?<=[a-z)]\.) (?=[A-Z])", p)]
    return tuple(s.replace('"', "'") for s in sentences if 30 <= len(s) <= 320)
