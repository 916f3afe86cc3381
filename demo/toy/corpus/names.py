"""Invented proper names and ordinary values, drawn from a seeded generator.

Names are put together from syllables, so that hardly any is seen twice: a model can only get them right by copying.
"""

from __future__ import annotations

from random import Random


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ONSETS = _words(
    """
    b br c ch d dr f fl g gr h j k kl l m n p pr qu r s sh sk st t th tr v w z
    """
)
_VOWELS = _words(
    """
    a e i o u ai ea ee ia io oa ou
    """
)
_CODAS = ("", "", "", "l", "n", "r", "s", "t", "m", "nd", "rk", "lt", "sh", "x", "ck", "rn")
_FIRST = _words(
    """
    Ada Alan Amira Anna Arjun Aylin Beatriz Ben Carla Chen Clara Daniel Diego Edith Elena Emil Fatima Felix Grace
    Hana Hugo Ines Ivan Jonas Julia Kaito Karim Katja Kofi Lena Leo Lucia Malik Mara Marco Maya Mei Milan Mina Nadia
    Nils Noor Olga Omar Otto Paula Pedro Priya Rana Rosa Ruth Samir Sara Sofia Stefan Tara Theo Tomas Uma Vera
    Viktor Wanda Yara Yusuf Zoe
    """
)
_PLACE_ENDINGS = _words(
    """
    ton ford burg haven mouth field stead bridge dale wick holm vale minster port
    """
)
CITIES = _words(
    """
    Amsterdam Athens Auckland Bangkok Barcelona Berlin Bogota Boston Brussels Bucharest Budapest Cairo Chicago
    Copenhagen Dakar Delhi Denver Dublin Edinburgh Geneva Hamburg Hanoi Helsinki Istanbul Jakarta Kyoto Lagos Lima
    Lisbon London Lyon Madrid Manila Marseille Melbourne Milan Montreal Nairobi Naples Osaka Oslo Ottawa Paris Porto
    Prague Quito Riga Rome Santiago Seattle Seoul Singapore Sofia Stockholm Sydney Taipei Tallinn Tokyo Toronto
    Tunis Turin Utrecht Valencia Vienna Vilnius Warsaw Zurich
    """
)
MONTHS = _words(
    """
    January February March April May June July August September October November December
    """
)
WEEKDAYS = _words(
    """
    Monday Tuesday Wednesday Thursday Friday Saturday Sunday
    """
)


def stem(rng: Random, syllables: int | None = None) -> str:
    """An invented word, capitalised: `Drolveak`."""
    count = syllables or rng.choice((1, 2, 2, 2, 3))
    word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(count)) + rng.choice(_CODAS)
    return word.capitalize()


def person(rng: Random) -> str:
    return f"{rng.choice(_FIRST)} {stem(rng)}"


def first_name(rng: Random) -> str:
    return rng.choice(_FIRST)


def place(rng: Random) -> str:
    """A known city or an invented town."""
    return rng.choice(CITIES) if rng.random() < 0.35 else stem(rng, rng.choice((1, 2))) + rng.choice(_PLACE_ENDINGS)


def year(rng: Random) -> str:
    return str(rng.randint(1640, 2019))


def count(rng: Random) -> str:
    """A whole number between 3 and 900,000, roughly uniform in its number of digits."""
    return f"{rng.randint(3, 9) * 10 ** rng.randint(0, 5) + rng.randint(0, 99):,}"


def date(rng: Random) -> str:
    return f"{rng.randint(1, 28)} {rng.choice(MONTHS)}"


def iso_date(rng: Random) -> str:
    return f"{rng.randint(2023, 2027)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def clock(rng: Random) -> str:
    return f"{rng.randint(6, 22):02}:{rng.choice(('00', '10', '15', '20', '30', '45', '50'))}"


def email(rng: Random) -> str:
    domain = rng.choice(("example.com", "example.org", "example.net", f"{stem(rng).lower()}.example"))
    return f"{rng.choice(_FIRST).lower()}.{stem(rng).lower()}@{domain}"


def code_number(rng: Random) -> str:
    """An order, ticket or model number: `KD-48213`."""
    letters = "".join(rng.choice("ABCDEFGHJKLMNPRSTUVWXYZ") for _ in range(2))
    return f"{letters}-{rng.randint(1000, 99999)}"
