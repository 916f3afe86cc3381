"""`kolm heads kscore`: how well a head drafts, measured and put on record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import options
from services.cli.values.named_files import expect_files, expect_folder
from services.generation.target.model_path import HEAD_FOLDER


def kscore(
    head: Annotated[str, typer.Argument(help="A folder with a head, or a reference that is fetched and checked.")],
    prompts: Annotated[list[Path], typer.Option(metavar="FILE", help="JSON lines with prompt or messages.")],
    adapters: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="An adapter in peft's layout, or a folder of them; repeat it for more."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Prompts to take from each file.")] = 16,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer at most.")] = 64,
    model: options.TrainedOn = options.MODEL,
    record: Annotated[bool, typer.Option("--record/--no-record", help="Sign the scores and keep them.")] = True,
    registry: options.Registry = options.REGISTRY,
    ledger: options.Ledger = options.LEDGER,
    home: options.Home = options.HOME,
    key: options.PublisherKey = None,
    key_passphrase_file: options.KeyPassphrase = None,
    json: options.Json = False,
) -> None:
    """Measure how much of a head's drafts the base accepts, bare and under adapters (k = 4, temperature 0).

    Below 0.5 the head needs retraining for that adapter: generation services no longer pick it there by themselves.
    """
    files = tuple(prompts)
    expect_files("--prompts", files, "JSON lines with prompt or messages")
    if "/" in head:
        expect_folder("HEAD", Path(head), HEAD_FOLDER)

    from services.cli.jobs.heads import fetching, scoring
    from services.cli.jobs.heads.publisher import Publisher
    from services.cli.terminal.output import answer
    from services.cli.views.heads.kscores import scores_json, scores_view
    from services.client.registry import RegistryClient

    keys, adapted = home.trusted, scoring.adapters_in(adapters or [])
    folder = fetching.local_folder(head, keys, registry, ledger, home.data_dir / "heads")
    loaded = scoring.loaded(scoring.Plan(folder, model, adapted, files, limit, max_tokens))
    if record:
        us = Publisher.load(home.key("publisher", key), keys, passphrase_file=key_passphrase_file)
        with RegistryClient.connect(registry) as client, us.explaining():
            client.head(
                loaded.head_cid
            )  # before the measurement: the registry takes no score of a head that it does not know
            scores = scoring.recorded(scoring.measured(loaded), client, us.key)
    else:
        scores = scoring.measured(loaded)
    answer(json, lambda: scores_json(scores), lambda: scores_view(scores))
