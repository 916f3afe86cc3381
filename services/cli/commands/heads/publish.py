"""`kolm heads push` and `kolm heads withdraw`, signed by publishers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.heads.fetch import Base, Reference
from services.cli.failures.exits import UsageError
from services.cli.options import options
from services.cli.values.named_files import expect_folder
from services.cli.values.parsing import numbers
from services.generation.target.model_path import HEAD_FOLDER


def push(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A head: config.json, model.safetensors. SafeAILab's, SpecForge's and speculators' layouts are "
            "written in kolm's."
        ),
    ],
    name: Annotated[str, typer.Option(help="The name to publish it under.")],
    model: options.TrainedOn = options.MODEL,
    feature_layers: Annotated[
        str | None, typer.Option(metavar="N,N,N", help="Layers that a head in another layout reads, if it says wrong.")
    ] = None,
    publisher: Annotated[str | None, typer.Option(help="The publisher's name. Default: the user's name.")] = None,
    annotate: Annotated[
        list[str] | None, typer.Option(metavar="KEY=TEXT", help="For the manifest; may be repeated.")
    ] = None,
    registry: options.Registry = options.REGISTRY,
    home: options.Home = options.HOME,
    key: options.PublisherKey = None,
    key_passphrase_file: options.KeyPassphrase = None,
    json: options.Json = False,
) -> None:
    """Publish a head: upload the missing files, sign, put it on record. If interrupted, run it again to continue."""
    expect_folder("FOLDER", folder, HEAD_FOLDER)
    layers = None if feature_layers is None else numbers("--feature-layers", feature_layers, int)

    from services.cli.jobs.heads import publishing
    from services.cli.jobs.heads.publisher import Publisher
    from services.cli.terminal.output import answer, talk
    from services.cli.views.heads.heads import pushed_json, pushed_view
    from services.client.registry import RegistryClient

    us = Publisher.load(home.key("publisher", key), home.trusted, passphrase_file=key_passphrase_file)
    notes = _annotations(annotate or [])
    with (
        RegistryClient.connect(registry) as client,
        us.explaining(),
        publishing.in_own_layout(folder, model, layers) as own,
    ):
        pushed = publishing.push(client, publishing.Description(own, model, name, publisher, notes), us.key)
    answer(json, lambda: pushed_json(pushed), lambda: pushed_view(pushed, name))
    if pushed.created and not json:
        talk().print(
            f"services that generate load heads when they start: start them again, perhaps with --head {name}",
            soft_wrap=True,
        )


def withdraw(
    reference: Reference,
    reason: Annotated[str, typer.Option(help="The reason; goes into the log.")],
    base: Base = None,
    registry: options.Registry = options.REGISTRY,
    home: options.Home = options.HOME,
    key: options.PublisherKey = None,
    key_passphrase_file: options.KeyPassphrase = None,
    by_operator: Annotated[
        bool,
        typer.Option(
            "--by-operator", help="An operator signs, whoever published it. Default key: <data-dir>/keys/operator.pem."
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Withdraw a head for good, under all of its names: no generation service loads it again."""
    from services.cli.jobs.heads import publishing
    from services.cli.jobs.heads.publisher import Publisher
    from services.cli.terminal.output import answer
    from services.cli.views.heads.heads import head_json, withdrawn_view
    from services.client.registry import RegistryClient

    role = "operator" if by_operator else "publisher"
    us = Publisher.load(home.key(role, key), home.trusted, role, key_passphrase_file)
    with RegistryClient.connect(registry) as client, us.explaining():
        found = client.resolve(reference, base_cid=base, include_withdrawn=True)
        head = publishing.withdraw(client, found.head_cid, reason, us.key)
    answer(json, lambda: head_json(head), lambda: withdrawn_view(head, again=found.withdrawal is not None))


def _annotations(words: list[str]) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    if not all(equals and key for key, equals, _ in pairs):
        raise UsageError("--annotate: expected KEY=TEXT")
    return {key: text for key, _, text in pairs}
