"""Options of a request for text, which `kolm generate` and `kolm chat` share."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli.exits import UsageError

SAMPLING, SPECULATION = "Sampling (defaults are the server's)", "Speculation (never changes the text)"

MaxTokens = Annotated[int | None, typer.Option("--max-tokens", rich_help_panel=SAMPLING)]
Temperature = Annotated[float | None, typer.Option("--temperature", "-t", rich_help_panel=SAMPLING)]
TopP = Annotated[float | None, typer.Option("--top-p", rich_help_panel=SAMPLING)]
TopK = Annotated[int | None, typer.Option("--top-k", rich_help_panel=SAMPLING)]
MinP = Annotated[float | None, typer.Option("--min-p", rich_help_panel=SAMPLING)]
Seed = Annotated[int | None, typer.Option("--seed", rich_help_panel=SAMPLING)]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="May be repeated.", rich_help_panel=SAMPLING)]
Method = Annotated[
    str | None,
    typer.Option("--method", help="auto, off or a method of the server.", rich_help_panel=SPECULATION),
]
K = Annotated[int | None, typer.Option("--k", help="Draft depth in tokens.", rich_help_panel=SPECULATION)]
EagleHead = Annotated[str | None, typer.Option("--eagle-head", help="Head of eagle3.", rich_help_panel=SPECULATION)]
MethodParameters = Annotated[
    list[str] | None,
    typer.Option(
        "--parameter",
        help="NAME=VALUE of the method, see kolm doctor. May be repeated.",
        rich_help_panel=SPECULATION,
    ),
]
Verify = Annotated[
    str | None,
    typer.Option(
        "--verify",
        help="sampled, or inline: replay before the receipt is signed.",
        rich_help_panel=SPECULATION,
    ),
]
Workload = Annotated[
    str | None,
    typer.Option(
        "--workload",
        help="single_tenant, many_adapters, rag, code or structured.",
        rich_help_panel=SPECULATION,
    ),
]
ModelName = Annotated[str | None, typer.Option("--model", help="Name or base_cid; the one served by default.")]
Adapter = Annotated[str | None, typer.Option("--adapter", help="Name or adapter_cid; the bare base by default.")]
Tenant = Annotated[str, typer.Option("--tenant", help="The tenant of the request; goes into the receipt.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.001, help="Give up after this many seconds.")]


def method_parameters(given: list[str]) -> dict[str, int]:
    """The values of `--parameter`. Raises UsageError for words that are no NAME=VALUE."""
    pairs = [each.partition("=") for each in given]
    for name, equals, value in pairs:
        if not name or not value.isdecimal():
            raise UsageError(
                f"--parameter: expected NAME=VALUE with a whole number, as window=4, got {name}{equals}{value}"
            )
    return {name: int(value) for name, _, value in pairs}
