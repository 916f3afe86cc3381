"""Requirements as pyproject.toml declares them, and installed distributions that they lead to."""

import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
DECLARED: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
"""Requirements of kolm-serve by extra."""


def declared(*extras: str) -> list[Requirement]:
    """Requirements of extras of kolm-serve, and of extras that these name in turn; kolm-serve itself is left out."""
    found, left, known = [], list(extras), set[str]()
    while left:
        extra = left.pop()
        if extra in known:
            continue
        known.add(extra)
        for requirement in map(Requirement, DECLARED[extra]):
            if requirement.name == "kolm-serve":
                left.extend(requirement.extras)
            else:
                found.append(requirement)
    return found


def closure(wanted: Iterable[Requirement]) -> dict[str, Distribution | None]:
    """Everything that an installer would add for `wanted`, by canonical name; None for a package not installed."""
    found: dict[str, Distribution | None] = {}
    left, known = list(wanted), set[tuple[str, frozenset[str]]]()
    while left:
        requirement = left.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in known:
            continue
        known.add((name, extras))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            found[name] = None
            continue
        for required in map(Requirement, distribution(name).requires or ()):
            if required.marker is None or any(required.marker.evaluate({"extra": each}) for each in {*extras, ""}):
                left.append(required)
    return found


def places(distributions: Iterable[Distribution]) -> set[Path]:
    """Files and folders in site-packages that hold `distributions`."""
    return {
        Path(str(each.locate_file(file.parts[0])))
        for each in distributions
        for file in each.files or ()
        if file.parts[0] not in ("..", "__pycache__")
    }
