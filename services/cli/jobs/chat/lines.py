"""The lines that somebody types, or that a program pipes in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

_BOLD, _PLAIN = "\001\033[1m\002", "\001\033[0m\002"  # \001 and \002 tell readline what takes no room


def typed_lines(commands: Sequence[str], on_interrupt: Callable[[], None]) -> Iterator[str]:
    """Lines from a terminal, with readline's editing and history, until Ctrl-D. Tab completes `commands`.

    Ctrl-C drops the line and calls `on_interrupt`.
    """
    bold = _edited(commands)
    while True:
        try:
            yield input(f"{_BOLD}>{_PLAIN} " if bold else "> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            on_interrupt()


def piped_lines() -> Iterator[str]:
    """Lines of standard input, without their ends."""
    return (line.rstrip("\r\n") for line in sys.stdin)


def _edited(commands: Sequence[str]) -> bool:
    """Whether readline reads the lines; nothing is kept on disk, for it may be private."""
    try:
        import readline
    except ImportError:  # there is none on Windows
        return False

    def complete(text: str, state: int) -> str | None:
        found = [command for command in commands if text and command.startswith(text)]
        return found[state] if state < len(found) else None

    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
    return True
