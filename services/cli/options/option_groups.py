"""Options that belong together as one parameter of a command: a dataclass, whose fields are the options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def with_option_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with a flag for each field in the place of parameters that are dataclasses.

    Such a parameter gets its values as one object. It is made before the command runs, and may raise UsageError.
    """
    signature = inspect.signature(command, eval_str=True)
    own = signature.parameters.values()
    groups = {each.name: each.annotation for each in own if _is_group(each.annotation)}

    @wraps(command)
    def run(**given: Any) -> Any:
        made = {
            name: kind(**{each.name: given.pop(each.name) for each in fields(kind)}) for name, kind in groups.items()
        }
        return command(**given, **made)

    flags = [flag for each in own for flag in (_flags(groups[each.name]) if each.name in groups else [_by_name(each)])]
    vars(run)["__signature__"] = signature.replace(parameters=flags)
    run.__annotations__ = {}  # typer takes them from the signature
    return run


def _is_group(annotation: Any) -> bool:
    return is_dataclass(annotation)


def _flags(group: type[Any]) -> list[inspect.Parameter]:
    hints, kind = get_type_hints(group, include_extras=True), inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(each.name, kind, default=_default(each), annotation=hints[each.name])
        for each in fields(group)
    ]


def _default(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default


def _by_name(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
