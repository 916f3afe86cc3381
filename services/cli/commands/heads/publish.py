"""`kolm heads push` and `kolm heads withdraw`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli import options
from services.cli.commands.heads.fetch import Base, Reference
from services.cli.exits import UsageError

Key = Annotated[Path | None, typer.Option(help="The publisher's key. Default: <data-dir>/keys/publisher.pem.")]
Secret = Annotated[
    str | None, typer.Option("--secret", envvar="KOLM_REGISTRY_SECRET", help="The registry's upload secret.")
]


def push(
    folder: Annotated[Path, typer.Argument(help="A head in kolm's layout: config.json, model.safetensors.")],
    name: Annotated[str, typer.Option(help="The name to publish it under.")],
    model: options.TrainedOn = Path("smollm2"),
    publisher: Annotated[str | None, typer.Option(help="Who publishes, in words. Default: the user's name.")] = None,
    annotate: Annotated[list[str] | None, typer.Option(metavar="KEY=TEXT", help="For the manifest; repeat it.")] = None,
    registry: options.Registry = options.REGISTRY,
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    key: Key = None,
    secret: Secret = None,
    json: options.Json = False,
) -> None:
    """Publish a head: upload what is missing, sign, put it on record. Interrupted, it goes on where it was."""
    from services.cli.jobs.heads import publishing
    from services.cli.jobs.heads.publisher import Publisher
    from services.cli.jobs.trust import trusted_directory
    from services.cli.output import data, print_json, talk
    from services.cli.views.heads import head_json
    from services.client.registry import RegistryClient

    us = Publisher.load(_key(key, data_dir), trusted_directory(trusted, data_dir))
    with RegistryClient.connect(registry, upload_secret=secret) as client, us.explaining():
        pushed = publishing.push(client, folder, model, name, publisher, _annotations(annotate or []), us.key)
    if json:
        print_json(head_json(pushed.head) | {"created": pushed.created, "sent": list(pushed.sent)})
        return
    publication = next(each for each in pushed.head.publications if each.name == name)
    verb = "published" if pushed.created else "was there already:"
    data().print(f"{verb} {name}, entry {publication.ledger_index}\n{pushed.head.head_cid}", soft_wrap=True)
    if pushed.created:
        hint = f"services that generate load heads when they start: start them again, perhaps with --head {name}"
        talk().print(hint, soft_wrap=True)


def withdraw(
    reference: Reference,
    reason: Annotated[str, typer.Option(help="Why; goes into the log.")],
    base: Base = None,
    registry: options.Registry = options.REGISTRY,
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    key: Key = None,
    json: options.Json = False,
) -> None:
    """Withdraw a head, for good and under all of its names: no generation service loads it any more."""
    from services.cli.jobs.heads import publishing
    from services.cli.jobs.heads.publisher import Publisher
    from services.cli.jobs.trust import trusted_directory
    from services.cli.output import data, print_json, printable
    from services.cli.views.heads import head_json
    from services.client.registry import RegistryClient

    us = Publisher.load(_key(key, data_dir), trusted_directory(trusted, data_dir))
    with RegistryClient.connect(registry) as client, us.explaining():
        found = client.resolve(reference, base_cid=base, include_withdrawn=True)
        head = publishing.withdraw(client, found.head_cid, reason, us.key)
    if json:
        print_json(head_json(head))
        return
    assert head.withdrawal is not None
    verb = "withdrawn" if found.withdrawal is None else "was withdrawn already"
    place, why = head.withdrawal.ledger_index, printable(head.withdrawal.reason)
    data().print(f"{verb}, entry {place}: {why}\n{head.head_cid}", soft_wrap=True, markup=False)


def _key(key: Path | None, data_dir: Path) -> Path:
    return key or data_dir / "keys" / "publisher.pem"


def _annotations(words: list[str]) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    if not all(equals and key for key, equals, _ in pairs):
        raise UsageError("--annotate: expected KEY=TEXT")
    return {key: text for key, _, text in pairs}
