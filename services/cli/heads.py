"""`kolm heads`: draft heads, from a folder to the registry and back; trained, measured, withdrawn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli import options, train
from services.cli.exits import UsageError
from services.cli.kscore import kscore

app = typer.Typer(no_args_is_help=True)
app.command("kscore")(kscore)
app.command("train")(train.train)

Reference = Annotated[str, typer.Argument(help="name, name@sha256:<digits>, or cidv1:sha256:…")]
Key = Annotated[Path | None, typer.Option(help="The publisher's key. Default: <data-dir>/keys/publisher.pem.")]
Secret = Annotated[
    str | None, typer.Option("--secret", envvar="KOLM_REGISTRY_SECRET", help="The registry's upload secret.")
]
Base = Annotated[str | None, typer.Option("--base", metavar="CID", help="Only heads for this base.")]


@app.command("push")
def push(
    folder: Annotated[Path, typer.Argument(help="A head in kolm's layout: config.json, model.safetensors.")],
    name: Annotated[str, typer.Option(help="The name to publish it under.")],
    model: options.TrainedOn = Path("demo/base"),
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
    from services.cli import head_push
    from services.cli.heads_view import head_json
    from services.cli.output import data, print_json, talk
    from services.cli.publisher import Publisher
    from services.cli.trust import trusted_directory
    from services.client.registry import RegistryClient

    us = Publisher.load(_key(key, data_dir), trusted_directory(trusted, data_dir))
    with RegistryClient.connect(registry, upload_secret=secret) as client, us.explaining():
        pushed = head_push.push(client, folder, model, name, publisher, _annotations(annotate or []), us.key)
    if json:
        print_json(head_json(pushed.head) | {"created": pushed.created, "sent": list(pushed.sent)})
        return
    publication = next(each for each in pushed.head.publications if each.name == name)
    verb = "published" if pushed.created else "was there already:"
    data().print(f"{verb} {name}, entry {publication.ledger_index}\n{pushed.head.head_cid}", soft_wrap=True)
    if pushed.created:
        hint = f"services that generate load heads when they start: start them again, perhaps with --head {name}"
        talk().print(hint, soft_wrap=True)


@app.command("pull")
def pull(
    reference: Reference,
    out: Annotated[Path | None, typer.Option(help="Folder to fill. Default: <data-dir>/heads/<digits>.")] = None,
    base: Base = None,
    registry: options.Registry = options.REGISTRY,
    ledger: options.Ledger = options.LEDGER,
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    json: options.Json = False,
) -> None:
    """Fetch a head and check all of it against the ledger's signed tree. Exit code 3 where something does not hold."""
    from services.cli.head_pull import pull as fetch
    from services.cli.output import data, print_json
    from services.cli.trust import load_trusted, trusted_directory
    from services.client import LedgerClient
    from services.client.registry import RegistryClient

    keys = load_trusted(trusted_directory(trusted, data_dir))
    with RegistryClient.connect(registry) as client, LedgerClient.connect(ledger) as log:
        checked = fetch(client, log, keys, reference, base, out, data_dir / "heads")
    if json:
        print_json(checked.to_json())
    else:
        data().print(f"{checked.folder}\n{checked.head.cid}", soft_wrap=True)


@app.command("list")
def list_(
    base: Base = None,
    name: Annotated[str | None, typer.Option(help="Only heads of this name.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Withdrawn ones too.")] = False,
    registry: options.Registry = options.REGISTRY,
    json: options.Json = False,
) -> None:
    """List heads, the oldest first."""
    from services.cli.heads_view import head_json, list_view
    from services.cli.output import data, print_json
    from services.client.registry import RegistryClient

    with RegistryClient.connect(registry) as client:
        heads = list(client.heads(base_cid=base, name=name, include_withdrawn=every))
    if json:
        print_json([head_json(head) for head in heads])
    else:
        data().print(list_view(heads) if heads else "no heads")


@app.command("show")
def show(
    reference: Reference, base: Base = None, registry: options.Registry = options.REGISTRY, json: options.Json = False
) -> None:
    """Show what is on record about a head, withdrawn or not."""
    from services.cli.heads_view import head_json, show_view
    from services.cli.output import data, print_json
    from services.client.registry import RegistryClient

    with RegistryClient.connect(registry) as client:
        head = client.resolve(reference, base_cid=base, include_withdrawn=True)
    if json:
        print_json(head_json(head))
    else:
        data().print(show_view(head))


@app.command("verify")
def verify(
    head: Annotated[str, typer.Argument(help="A folder that `pull` filled, or a reference.")],
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the ledger about withdrawals.")] = False,
    registry: options.Registry = options.REGISTRY,
    ledger: options.Ledger = options.LEDGER,
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    json: options.Json = False,
) -> None:
    """Check a head's publisher, its place in the log and every byte. Exit code 3, and why, where one does not hold."""
    from services.cli.head_pull import CHECKS
    from services.cli.head_verify import verified
    from services.cli.heads_view import checked_view
    from services.cli.output import data, print_json
    from services.cli.trust import load_trusted, trusted_directory

    keys = load_trusted(trusted_directory(trusted, data_dir))
    checked = verified(head, keys, registry, None if offline else ledger)
    if json:
        print_json(checked.to_json())
        return
    data().print(checked_view(CHECKS, [True] * 4 + [None if checked.withdrawn is None else True]))
    data().print(f"{checked.head.publication.name}: {checked.head.cid}", soft_wrap=True)


@app.command("withdraw")
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
    from services.cli import head_push
    from services.cli.heads_view import head_json
    from services.cli.output import data, print_json, printable
    from services.cli.publisher import Publisher
    from services.cli.trust import trusted_directory
    from services.client.registry import RegistryClient

    us = Publisher.load(_key(key, data_dir), trusted_directory(trusted, data_dir))
    with RegistryClient.connect(registry) as client, us.explaining():
        found = client.resolve(reference, base_cid=base, include_withdrawn=True)
        head = head_push.withdraw(client, found.head_cid, reason, us.key)
    if json:
        print_json(head_json(head))
        return
    assert head.withdrawal is not None
    verb = "withdrawn" if found.withdrawal is None else "was withdrawn already"
    place, why = head.withdrawal.ledger_index, printable(head.withdrawal.reason)
    data().print(f"{verb}, entry {place}: {why}\n{head.head_cid}", soft_wrap=True, markup=False)


@app.command("convert")
def convert(
    source: Annotated[Path, typer.Argument(help="A head as SafeAILab, SpecForge or speculators publish it.")],
    out: Annotated[Path, typer.Argument(help="The folder to write in kolm's layout.")],
    model: options.TrainedOn = Path("demo/base"),
    feature_layers: Annotated[
        str | None, typer.Option(metavar="N,N,N", help="Layers whose features it reads, where its config is wrong.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Write a head in kolm's layout, with every choice explicit."""
    from services.cli.head_convert import convert as write
    from services.cli.output import data, print_json

    written = write(source, out, model, _layers(feature_layers))
    if json:
        print_json(written)
    else:
        layers = ", ".join(map(str, written["feature_layers"]))
        data().print(f"{written['origin']} → {out}: reads the features of layers {layers}", soft_wrap=True)


def _key(key: Path | None, data_dir: Path) -> Path:
    return key or data_dir / "keys" / "publisher.pem"


def _annotations(words: list[str]) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    if not all(equals and key for key, equals, _ in pairs):
        raise UsageError("--annotate: expected KEY=TEXT")
    return {key: text for key, _, text in pairs}


def _layers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    numbers = text.split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        raise UsageError(f"--feature-layers: expected layer numbers with commas between them, got {text!r}")
    return tuple(map(int, numbers))
