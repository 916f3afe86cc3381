"""Words of the command line as values, without pydantic, which typer imports for that: a third of what a call costs.

Only what is certainly right is taken here: no value, a value that has its type already (a default), text for text,
plain digits within bounds, a path. Everything else, and every refusal but that of a number, is typer's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, get_args, get_origin

from typer import BadParameter

from services.cli.failures.exits import UsageError


def coerced_quickly(params: list[Any]) -> list[Any]:
    """The parameters of one command, where typer has not coerced any yet."""
    for param in params:
        if param._runtime_param is None:
            param._runtime_param = _Quick()
    return params


class _Quick:
    """Stands where typer keeps what coerces a parameter, until a value comes that it leaves to typer."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several, kind = param.multiple or param.nargs == -1, param.type_descriptor
        if value is None:
            return () if several else None
        if kind.parameter_info.parser is None:
            found = _list(value, kind) if several else _value(value, kind.annotation, kind.parameter_info)
            if found is not None:
                return found
        param._runtime_param = None
        try:
            return param.get_runtime_param().coerce(value, param=param, ctx=ctx)
        except BadParameter:
            if several or kind.annotation not in (int, float):
                raise
            raise UsageError(f"{param.opts[0]}: is {value}; expected {_expected(kind)}") from None


def _expected(kind: Any) -> str:
    """The numbers that a parameter takes, as servers say it of theirs."""
    least, most = kind.parameter_info.min, kind.parameter_info.max
    noun = "a whole number" if kind.annotation is int else "a number"
    if least is not None and most is not None:
        return f"{noun} from {least:g} to {most:g}"
    return (
        f"{noun} at least {least:g}" if least is not None else f"{noun} at most {most:g}" if most is not None else noun
    )


def _list(values: Any, kind: Any) -> list[Any] | None:
    if get_origin(kind.annotation) is not list or not isinstance(values, list | tuple):
        return None
    found = [_value(value, get_args(kind.annotation)[0], kind.parameter_info) for value in values]
    return None if None in found else found


def _value(value: Any, annotation: Any, given: Any) -> Any:
    """None for what typer has to look at."""
    if annotation is Path:
        return _path(value, given)
    if annotation in (int, float):
        number = _number(value, annotation)
        within = number is not None and (given.min is None or number >= given.min)
        return number if within and (given.max is None or number <= given.max) else None
    return value if annotation in (str, bool) and type(value) is annotation else None


def _number(value: Any, kind: type[Any]) -> Any:
    if type(value) is kind:
        return value
    if not isinstance(value, str) or not value.isascii():
        return None
    digits = value if kind is int else value.replace(".", "", 1)
    return kind(value) if digits.isdecimal() else None


def _path(value: Any, given: Any) -> Path | None:
    if given.exists or given.resolve_path or given.writable or given.allow_dash or not given.file_okay:
        return None
    path = Path(value)
    if path.exists() and not (os.access(path, os.R_OK) and (given.dir_okay or not path.is_dir())):
        return None
    return path
