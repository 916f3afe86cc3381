"""The tree of commands: each is imported once it is asked for, and its errors end as readable lines on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from services.cli.failures import exits
from services.cli.options.option_groups import with_option_groups
from services.cli.options.server_options import with_server_options
from services.cli.terminal.streams import discard_stdout, make_usable
from services.cli.values.coercion import coerced_quickly


@dataclass(frozen=True, slots=True)
class Group:
    """A word with commands below it."""

    summary: str
    commands: Mapping[str, Member]


Member = str | Group | Callable[[], typer.Typer]
"""Where a command is, `module:function` in `services.cli.commands`; commands below a word; or what makes those."""


class Commands(Mapping[str, Any]):
    """The commands of a group, made as click asks for them: forty that nobody asks for cost a tenth of a second."""

    def __init__(self, members: Mapping[str, Member]) -> None:
        self._members = members
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _command(name, self._members[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


def _command(name: str, member: Member) -> Any:
    if isinstance(member, Group):
        group: Any = GroupCommand(name=name, help=member.summary, no_args_is_help=True)
        group.commands = Commands(member.commands)
        return group
    if callable(member):
        group = get_command(member())
        group.name = name
        return group
    module, _, function = member.partition(":")
    alone = typer.Typer(add_completion=False)
    command = getattr(import_module(f"services.cli.commands.{module}"), function)
    alone.command(name, cls=_Command)(with_option_groups(with_server_options(command)))
    return get_command(alone)


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        params = coerced_quickly(super().get_params(ctx))
        for param in params:
            if param.param_type_name == "argument" and param.metavar is None:
                param.metavar = param.name.upper()
        return params

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _write_help(self, ctx, formatter)


class GroupCommand(TyperGroup):
    """A word with commands below it, as typer knows it."""

    def get_params(self, ctx: Any) -> list[Any]:
        return coerced_quickly(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _write_help(self, ctx, formatter)


def _write_help(command: Any, ctx: Any, formatter: Any) -> None:
    from services.cli.command_help import command_page

    formatter.write(command_page(command, ctx))


class KolmGroup(GroupCommand):
    """The outermost group. Imports what explains an error only once there is one."""

    members: ClassVar[Mapping[str, Member]] = {}

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
                sys.stdout.flush()  # a failing write is noticed here, and not at the interpreter's end
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(exits.INTERRUPTED) from None
        except BrokenPipeError:  # the reader of our output has closed it
            discard_stdout()
            raise typer.Exit(exits.OK) from None
        except Exception as error:
            from services.cli.failures.failure import explain

            raise typer.Exit(explain(error)) from error
