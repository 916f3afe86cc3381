"""The output of the main job: headings, text as it streams, tables. Plain if stdout is not a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from demo.main_job.measurement import Prompt, Row
from services.cli.frame.process import printable

_NUMBERS = ("tokens/s", "tokens a pass", "speedup")
_PIECES = re.compile(r"\s|\S+")

_PROMPT_LINES = 3
_SHOWN_LINES = 8
_SHOWN_CHARACTERS = 480
_IDENTICAL = {None: "[dim]the reference[/]", True: "[green]yes, every token[/]", False: "[bold red]NO[/]"}


class WrappedText:
    """Writes a word once it is known to be whole: whitespace has followed it."""

    def __init__(self, write: Callable[[str], None], width: Callable[[], int]) -> None:
        """`width` returns the terminal's width in columns; it is called for each word."""
        self._write, self._width = write, width
        self._column, self._word = 0, ""

    def __call__(self, text: str) -> None:
        for piece in _PIECES.findall(text):
            if piece.isspace():
                self._end_word()
                self._space(piece)
            else:
                self._word += piece

    def _end_word(self) -> None:
        size = cell_len(self._word)
        if self._column and size and self._column + size > self._width():
            self._write("\n")
            self._column = 0
        self._write(self._word)
        self._column, self._word = self._column + size, ""

    def _space(self, piece: str) -> None:
        """A space after a full line is left out: the terminal would put it at the beginning of the next one."""
        if piece == "\n" or self._column < self._width():
            self._write(piece)
        self._column = 0 if piece == "\n" else self._column + 1


class Stage:
    """Writes the demo to one console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._step = 0

    def open(self) -> None:
        self.console.print("[bold]kolm[/]: speculative decoding that can prove that it changed nothing")

    def step(self, title: str) -> None:
        self._step += 1
        self.console.print(f"\n[bold]{self._step}. {title}[/]")

    def remark(self, text: str) -> None:
        self.console.print(f"[dim]{text}[/]")

    @contextmanager
    def waiting(self, text: str, *, long: bool = False) -> Iterator[None]:
        """Show that something is running, and since when, on a terminal; elsewhere print a line if it is `long`."""
        if not self.console.is_terminal:
            if long:
                self.remark(f"{text} …")
            yield
            return
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True) as progress:
            progress.add_task(text, total=None)
            yield

    def prompt(self, prompt: Prompt) -> None:
        """The end of the prompt, and a rule with the role of the turn."""
        self.console.print()
        lines = [line for line in prompt.ending.strip().splitlines() if line.strip()]
        if len(lines) > _PROMPT_LINES:
            self.console.print(f"[dim]{prompt.id}: … {len(lines) - _PROMPT_LINES} lines above[/]")
        else:
            self.console.print(f"[dim]{prompt.id}:[/]")
        for line in lines[-_PROMPT_LINES:]:
            self.console.print(Text(_cut(line, 4 * self.console.width), style="dim"))

    def table(self, rows: Sequence[Row], totals: Sequence[Row]) -> None:
        made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
        for title in ("kind", "method", "tokens/s", "tokens a pass", "speedup", "identical to off"):
            made.add_column(title, justify="right" if title in _NUMBERS else "left")
        for row in rows:
            made.add_row(*_cells(row), end_section=row is rows[-1])
        for row in totals:
            made.add_row("[bold]all[/]", *_cells(row)[1:])
        self.console.print(made)


class Stream:
    """Text as it comes, in a few lines: the first part of it, then only that there is more."""

    def __init__(self, console: Console) -> None:
        def show(text: str) -> None:
            console.print(Text(text, style="green"), end="", soft_wrap=True)

        self._show: Callable[[str], None] = WrappedText(show, lambda: console.width) if console.is_terminal else show
        self._shown = ""
        self._full = False

    def write(self, text: str) -> None:
        if self._full:
            return
        self._shown += printable(text)
        room = _fits(self._shown)
        self._full = room < len(self._shown)
        self._show(f"{printable(text)[: room - len(self._shown)]} …" if self._full else printable(text))

    def close(self) -> None:
        self._show("\n")


def _fits(text: str) -> int:
    """How many characters of `text` are shown."""
    lines = text.split("\n", _SHOWN_LINES)
    of_lines = len(text) - len(lines[_SHOWN_LINES]) - 1 if len(lines) > _SHOWN_LINES else len(text)
    return min(of_lines, _SHOWN_CHARACTERS)


def _cells(row: Row) -> tuple[str, ...]:
    style = "bold" if row.method != "off" else "dim"
    return (
        escape(row.kind),
        f"[{style}]{row.method}[/]",
        f"{row.tokens_per_second:.0f}",
        f"{row.acceptance_length:.2f}",
        f"{row.speedup:.2f} ×",
        _IDENTICAL[row.identical],
    )


def _cut(line: str, longest: int) -> str:
    return line if len(line) <= longest else "… " + line[-longest:]
