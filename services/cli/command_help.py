"""`kolm … --help`: what a command line library knows of its parameters, as rows of the page that services have too."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from services.runtime.usage import Row, Section, help_page

_METAVARS = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}
_OPTIONS = "Options"


def command_page(command: Any, context: Any) -> str:
    """The help of one command, or of a group with the commands below it."""
    options: dict[str, list[Row]] = {_OPTIONS: []}
    arguments = []
    for param in command.get_params(context):
        if param.param_type_name == "argument":
            arguments.append(Row(_argument(param), param.help or "", _notes(param)))
        elif not param.hidden:
            panel = options.setdefault(param.rich_help_panel or _OPTIONS, [])
            panel.append(Row(_flags(param), param.help or "", _notes(param)))
    below = getattr(command, "commands", {})
    sections = [
        Section("Arguments", tuple(arguments)),
        Section("Commands", tuple(Row(name, _summary(below[name])) for name in below)),
        *(Section(title, tuple(rows)) for title, rows in options.items() if title != _OPTIONS),
        Section(_OPTIONS, tuple(options[_OPTIONS])),
    ]
    return help_page(_usage(command, context), command.help or "", sections, command.epilog or "")


def _usage(command: Any, context: Any) -> str:
    arguments = [param for param in command.get_params(context) if param.param_type_name == "argument"]
    words = [each if (each := _argument(param)) and param.required else f"[{each}]" for param in arguments]
    words += ["COMMAND"] if hasattr(command, "commands") else []
    return " ".join([context.command_path, "[OPTIONS]", *words])


def _argument(param: Any) -> str:
    return f"{param.metavar or param.name.upper()}{'...' if param.nargs == -1 else ''}"


def _summary(command: Any) -> str:
    """The first sentence or line of what a command says of itself."""
    text = " ".join((command.help or "").split())
    first, stop, _ = text.partition(". ")
    return first + "." if stop else text


def _flags(param: Any) -> str:
    names = ", ".join(sorted(param.opts, key=len)) + "".join(f", {each}" for each in param.secondary_opts)
    return names if param.is_flag else f"{names} {_metavar(param)}"


def _metavar(param: Any) -> str:
    if param.metavar is not None:
        return str(param.metavar)
    annotation = param.type_descriptor.annotation
    if get_origin(annotation) is list:
        (annotation,) = get_args(annotation)
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    return _METAVARS.get(annotation, "TEXT")


def _notes(param: Any) -> tuple[str, ...]:
    notes = [param.envvar] if param.envvar else []
    given = param.type_descriptor.parameter_info
    low, high = given.min, given.max
    if low is not None:
        notes.append(f"at least {low:g}" if high is None else f"{low:g} to {high:g}")
    if param.required:
        notes.append("required")
    elif isinstance(param.default, bool):
        notes += [f"default: {param.opts[0]}"] if param.default else []
    elif param.default:
        notes.append(f"default: {param.default:g}" if isinstance(param.default, float) else f"default: {param.default}")
    return tuple(notes)
