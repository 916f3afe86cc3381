"""`kolm replay`: compute a receipted request again, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.failures import exits
from services.cli.options import options
from services.cli.options.engine_options import ENGINE, EngineOptions


def replay(
    file: Annotated[Path, typer.Argument(help="A receipt file, as `kolm generate --save` writes.")],
    model: Annotated[
        Path | None,
        options.model("--model", "The base that the receipt names: a transformers directory, a GGUF file, or smollm2."),
    ] = None,
    engine: EngineOptions = ENGINE,
    any_storage: Annotated[
        bool, typer.Option("--any-storage", help="Take the base's values from other files than the receipt names.")
    ] = False,
    decode: Annotated[bool, typer.Option("--decode", help="Token by token, in place of along the output.")] = False,
    home: options.Home = options.HOME,
    json: options.Json = False,
) -> None:
    """Compute a receipted request again, here, and compare every token, the digest and the texts. Asks no service.

    Exit code 3 if it differs, or the content is not what the receipt commits to; 1 if it cannot be computed here.
    """
    if not file.is_file():
        raise exits.Missing(f"there is no {file}", "`kolm generate --save` and `kolm receipts export` write such files")
    if model is None:
        raise exits.UsageError("expected --model: the base that the receipt names, with the same values")

    from services.cli.jobs.receipts.replay import replay_file
    from services.cli.terminal.output import answer
    from services.cli.views.receipts.replay import replay_json, replay_view

    plan = engine.plan(model)
    done = replay_file(file, plan, home.trusted, decode=decode, any_storage=any_storage, quiet=json)
    answer(json, lambda: replay_json(done), lambda: replay_view(done))
    if done.differs:
        raise typer.Exit(exits.VERIFICATION_FAILED)
    raise typer.Exit(exits.OK if done.finding.outcome == "EXACT" else exits.FAILED)
