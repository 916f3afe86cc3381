"""Flags as the words of a command."""

from __future__ import annotations


def words(**flags: object) -> tuple[str, ...]:
    """`--the-name VALUE` each, for a list once for each value; the bare flag for True, nothing for None and False."""
    found: list[str] = []
    for name, given in flags.items():
        flag = f"--{name.replace('_', '-')}"
        for value in given if isinstance(given, list) else [given]:
            if value is True:
                found.append(flag)
            elif value is not None and value is not False:
                found += (flag, str(value))
    return tuple(found)
