"""`kolm heads kscore`: its flags, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli import options
from services.cli.exits import UsageError

if TYPE_CHECKING:
    from services.cli.jobs.heads.scoring import Scored

_PROMPTS = Path("demo/prompts")


def kscore(
    head: Annotated[str, typer.Argument(help="A folder with a head, or a reference that is fetched and checked.")],
    adapters: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="An adapter in peft's layout, or a folder of them; repeat it for more."),
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="JSON lines with prompt or messages. Default: demo/prompts."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Prompts taken of each file.")] = 16,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer at most.")] = 64,
    model: options.TrainedOn = Path("smollm2"),
    record: Annotated[bool, typer.Option("--record/--no-record", help="Sign the scores and keep them.")] = True,
    registry: options.Registry = options.REGISTRY,
    ledger: options.Ledger = options.LEDGER,
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    key: Annotated[Path | None, typer.Option(help="The publisher's. Default: <data-dir>/keys/publisher.pem.")] = None,
    json: options.Json = False,
) -> None:
    """Measure how much of a head's drafts the base accepts, bare and under adapters (k = 4, temperature 0).

    Below 0.5 the head needs retraining for that adapter: generation services no longer pick it there by themselves.
    """
    from services.cli.jobs.heads import scoring
    from services.cli.jobs.heads.publisher import Publisher
    from services.cli.jobs.trust import trusted_directory
    from services.client.registry import RegistryClient

    files = tuple(prompts or sorted(_PROMPTS.glob("*.jsonl")))
    if not files:
        raise UsageError(f"--prompts: none given, and no *.jsonl in {_PROMPTS}")
    worn = scoring.adapters_in(adapters or [])
    folder = _folder(head, registry, ledger, data_dir, trusted)
    loaded = scoring.loaded(scoring.Plan(folder, model, worn, files, limit, max_tokens))
    if not record:
        _show(scoring.measured(loaded), json)
        return
    us = Publisher.load(key or data_dir / "keys" / "publisher.pem", trusted_directory(trusted, data_dir))
    with RegistryClient.connect(registry) as client, us.explaining():
        client.head(loaded.head_cid)  # first: what the registry does not know, it keeps no score of
        _show(scoring.recorded(scoring.measured(loaded), client, us.key), json)


def _folder(head: str, registry: str, ledger: str, data_dir: Path, trusted: Path | None) -> Path:
    """Where the head's files are; those of a reference are fetched and verified first."""
    from services.cli.jobs.heads.fetching import folder_of, pull
    from services.cli.jobs.trust import load_trusted, trusted_directory
    from services.client import LedgerClient
    from services.client.registry import RegistryClient

    given = folder_of(head)
    if given is not None:
        return given
    keys = load_trusted(trusted_directory(trusted, data_dir))
    with RegistryClient.connect(registry) as client, LedgerClient.connect(ledger) as log:
        folder = pull(client, log, keys, head, None, None, data_dir / "heads").folder
    assert folder is not None
    return folder


def _show(scored: Sequence[Scored], as_json: bool) -> None:
    from services.cli.output import data, print_json, table

    if as_json:
        print_json(
            [each.score.to_document() | {"adapter": each.adapter, "ledger_index": each.ledger_index} for each in scored]
        )
        return
    made = table("adapter", "accepted", "by depth", "length", "", "entry", right=("accepted", "length", "entry"))
    for each in scored:
        score = each.score
        made.add_row(
            each.adapter or "none",
            f"{score.mean_acceptance:.2f}",
            " ".join(f"{share:.2f}" for share in score.acceptance_by_depth),
            f"{score.mean_acceptance_length:.2f}",
            "[green]good[/]" if score.status == "GOOD" else "[yellow]needs retraining[/]",
            "–" if each.ledger_index is None else str(each.ledger_index),
        )
    data().print(made)
