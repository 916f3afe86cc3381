"""The tree of commands: each is imported when it is called, and its errors end as readable lines on stderr."""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial, wraps
from importlib import import_module
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import typer
from typer import BadParameter
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from services.cli.frame import exits
from services.cli.frame.options import SERVER, FolderOptions, ServerOptions
from services.cli.frame.process import discard, make_usable, print_error, reader_may_leave
from services.cli.frame.values import expect_address
from services.runtime.usage import Row, Section, help_page

_METAVARS = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}
_OPTIONS = "Options"
_MOST_DIGITS = 300  # Python converts more to infinity, and none over 4300


@dataclass(frozen=True, slots=True)
class Group:
    """A command with subcommands."""

    summary: str
    commands: Mapping[str, Member]


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A command that passes all flags to another program, --help too."""

    summary: str
    run: Callable[[typer.Context], None]


Member = str | Group | Forwarded
"""The place of a command, `module:function` in `services.cli`; subcommands; or a command of another program."""


class Commands(Mapping[str, Any]):
    """The commands of a group, each made when typer reads it: to import all forty would take a tenth of a second."""

    def __init__(self, members: Mapping[str, Member]) -> None:
        self._members = members
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _command(name, self._members[name])
        return self._made[name]

    def summary(self, name: str) -> str:
        member = self._members[name]
        return _summary(member) if isinstance(member, str) else member.summary

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


def _command(name: str, member: Member) -> Any:
    if isinstance(member, Group):
        group: Any = _GroupCommand(name=name, help=member.summary, no_args_is_help=True)
        group.commands = Commands(member.commands)
        return group
    alone = typer.Typer(add_completion=False)
    if isinstance(member, Forwarded):
        settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
        alone.command(name, help=member.summary, context_settings=settings, add_help_option=False)(member.run)
    else:
        module, _, function = member.partition(":")
        try:
            command = getattr(import_module(f"services.cli.{module}"), function)
        except ModuleNotFoundError as error:
            return _left_out(name, member, error)
        alone.command(name, cls=_Command)(with_option_groups(_with_server_options(command)))
    return get_command(alone)


def _left_out(name: str, member: str, missing: ModuleNotFoundError) -> Any:
    """A command whose modules are not installed, as in kolm-verify: it has its summary, and raises `missing`."""

    def run() -> None:
        raise missing

    alone, settings = typer.Typer(add_completion=False), {"allow_extra_args": True, "ignore_unknown_options": True}
    alone.command(name, cls=_Command, help=_summary(member), context_settings=settings)(run)
    return get_command(alone)


def _summary(member: str) -> str:
    """The first sentence of a command's docstring, read from its source without importing it."""
    module, _, function = member.partition(":")
    source = Path(__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    found = (each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef) and each.name == function)
    first, stop, _ = " ".join((ast.get_docstring(next(found)) or "").split()).partition(". ")
    return first + "." if stop else first


class _Page:
    """Help by `help_page`, as of services, and quick coercion, for commands and groups."""

    def get_params(self, ctx: Any) -> list[Any]:
        params = _coerced_quickly(super().get_params(ctx))  # type: ignore[misc]
        for param in params:
            if param.param_type_name == "argument" and param.metavar is None:
                param.metavar = param.name.upper()
        return params

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_command_page(self, ctx))


class _Command(_Page, TyperCommand):
    pass


class _GroupCommand(_Page, TyperGroup):
    pass


class KolmGroup(_GroupCommand):
    """The outermost group. It imports the explanation of errors when there is one."""

    members: ClassVar[Mapping[str, Member]] = {}
    offline: ClassVar[frozenset[str]] = frozenset()
    """The members that can run if only kolm-verify is installed."""

    @property
    def lacking(self) -> frozenset[str]:
        """The members that cannot run here, because only kolm-verify is installed."""
        return frozenset() if find_spec("services.ledger") else frozenset(self.members) - self.offline

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = Commands(self.members)

    def main(self, *arguments: Any, **more: Any) -> Any:
        make_usable()
        return super().main(*arguments, **more)

    def invoke(self, ctx: Any) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                with reader_may_leave(sys.stdout):
                    sys.stdout.flush()  # a failing write is noticed here, and not at the interpreter's end
        except KeyboardInterrupt:
            print_error("interrupted")
            raise typer.Exit(exits.INTERRUPTED) from None
        except BrokenPipeError:  # the reader of text that streams has closed it
            discard(sys.stdout)
            raise typer.Exit(exits.OK) from None
        except Exception as error:
            from services.cli.frame.failures import explain

            if isinstance(error, OSError):  # perhaps of stdout, which would fail once more, at the interpreter's end
                discard(sys.stdout)
            raise typer.Exit(explain(error)) from error


def with_option_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with a flag for each field of its parameters that are dataclasses.

    Such a parameter gets its values as one object, made before the command runs; that may raise UsageError.
    """
    signature = inspect.signature(command, eval_str=True)
    own = signature.parameters.values()
    groups: dict[str, Any] = {each.name: each.annotation for each in own if is_dataclass(each.annotation)}

    @wraps(command)
    def run(**given: Any) -> Any:
        made: dict[str, Any] = {}
        for name, kind in groups.items():
            made[name] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
        return command(**given, **made)

    flags = []
    for each in own:
        flags += (
            _flags(groups[each.name]) if each.name in groups else [each.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
        )
    vars(run)["__signature__"] = signature.replace(parameters=flags)
    run.__annotations__ = {}  # typer takes them from the signature
    return run


def _flags(group: Any) -> list[inspect.Parameter]:
    hints, kind, empty = (
        get_type_hints(group, include_extras=True),
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.empty,
    )
    defaults = {each.name: empty if each.default is MISSING else each.default for each in fields(group)}
    return [inspect.Parameter(name, kind, default=defaults[name], annotation=hints[name]) for name in defaults]


def _with_server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with `ServerOptions`, and with the data folder that has the addresses, unless it has that option; the
    command itself if none of its parameters is the address of a server.
    """
    signature = inspect.signature(command, eval_str=True)
    own = signature.parameters.values()
    addresses = [
        each.name for each in own if any(getattr(part, "metavar", None) == SERVER for part in get_args(each.annotation))
    ]
    if not addresses:
        return command

    @wraps(command)
    def connecting(*, servers: ServerOptions, data_folder: FolderOptions | None = None, **given: Any) -> Any:
        for name in addresses:
            expect_address(f"--{name}", given[name])
        servers.for_process()
        return command(**given)

    more: dict[str, type[Any]] = {"servers": ServerOptions}
    if not any(map(_has_data_dir, own)):
        more = {"data_folder": FolderOptions} | more
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(name, keyword, annotation=kind) for name, kind in more.items()]
    vars(connecting)["__signature__"] = signature.replace(parameters=[*own, *added])
    return connecting


def _has_data_dir(parameter: inspect.Parameter) -> bool:
    kind = parameter.annotation
    return parameter.name == "data_dir" or (is_dataclass(kind) and "data_dir" in {each.name for each in fields(kind)})


def _coerced_quickly(params: list[Any]) -> list[Any]:
    """The parameters of one command, each with `_Quick` before typer's own coercion."""
    for param in params:
        if "get_runtime_param" not in vars(param):
            param.get_runtime_param = partial(_Quick, param.get_runtime_param)
    return params


class _Quick:
    """Coerces words without pydantic, whose import takes a third of the time of a call.

    It takes the certain cases: no value, a value of the right type (a default), text for text, plain digits within
    bounds, a path. Typer coerces all others, and words every refusal except that of a number.
    """

    def __init__(self, typers_own: Callable[[], Any]) -> None:
        self._typers_own = typers_own

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several, kind = param.multiple or param.nargs == -1, param.type_descriptor
        if value is None:
            return () if several else None
        if kind.annotation is str and any("\ud800" <= each <= "\udfff" for each in value):  # bytes of an argument
            raise exits.UsageError(f"{param.opts[0]}: is {value!a}; expected UTF-8")
        if kind.parameter_info.parser is None:
            found = _list(value, kind) if several else _value(value, kind.annotation, kind.parameter_info)
            if found is not None:
                return found
        try:
            made = self._typers_own().coerce(value, param=param, ctx=ctx)
            if not isinstance(made, float) or isfinite(made):
                return made
        except BadParameter:
            if several or kind.annotation not in (int, float):
                raise
        raise exits.UsageError(f"{param.opts[0]}: is {value}; expected {_expected(kind)}")


def _expected(kind: Any) -> str:
    """The numbers that a parameter takes, worded as for settings of services."""
    least, most = kind.parameter_info.min, kind.parameter_info.max
    noun = "a whole number" if kind.annotation is int else "a number"
    if least is None:
        return noun if most is None else f"{noun} at most {most:g}"
    return f"{noun} at least {least:g}" if most is None else f"{noun} from {least:g} to {most:g}"


def _list(values: Any, kind: Any) -> list[Any] | None:
    if get_origin(kind.annotation) is not list or not isinstance(values, list | tuple):
        return None
    found = [_value(value, get_args(kind.annotation)[0], kind.parameter_info) for value in values]
    return None if None in found else found


def _value(value: Any, annotation: Any, given: Any) -> Any:
    """The value; None if typer has to coerce it."""
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
    if not isinstance(value, str) or not value.isascii() or len(value) > _MOST_DIGITS:
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


def _command_page(command: Any, context: Any) -> str:
    """The help of one command, or of a group with the commands below it."""
    options: dict[str, list[Row]] = {_OPTIONS: []}
    arguments = []
    for param in command.get_params(context):
        if param.param_type_name == "argument":
            arguments.append(Row(_argument(param), param.help or "", _notes(param)))
        elif not param.hidden:
            panel = options.setdefault(param.rich_help_panel or _OPTIONS, [])
            panel.append(Row(_flag_names(param), param.help or "", _notes(param)))
    below = getattr(command, "commands", Commands({}))
    sections = [
        Section("Arguments", tuple(arguments)),
        Section("Commands", tuple(_command_row(name, below, getattr(command, "lacking", ())) for name in below)),
        *(Section(title, tuple(rows)) for title, rows in options.items() if title != _OPTIONS),
        Section(_OPTIONS, tuple(options[_OPTIONS])),
    ]
    return help_page(_usage(command, context), command.help or "", sections, command.epilog or "")


def _command_row(name: str, below: Any, lacking: Collection[str]) -> Row:
    return Row(name, below.summary(name), ("needs kolm-serve",) if name in lacking else ())


def _usage(command: Any, context: Any) -> str:
    arguments = [param for param in command.get_params(context) if param.param_type_name == "argument"]
    words = [_argument(param) if param.required else f"[{_argument(param)}]" for param in arguments]
    words += ["COMMAND"] if hasattr(command, "commands") else []
    return " ".join([context.command_path, "[OPTIONS]", *words])


def _argument(param: Any) -> str:
    return f"{param.metavar}{'...' if param.nargs == -1 else ''}"


def _flag_names(param: Any) -> str:
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
