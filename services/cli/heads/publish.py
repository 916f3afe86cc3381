"""`kolm heads push` and `kolm heads withdraw`, signed by publishers."""

from __future__ import annotations

import getpass
import hashlib
import io
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated

from typer import Argument, Option

from ledger.documents.draft_head import DraftHeadPublication, DraftHeadWithdrawal
from ledger.documents.manifests import BaseManifest, DraftHeadManifest, NamedFile
from ledger.documents.signed_document import sign_document
from ledger.encoding.canonical import parse_json
from ledger.encoding.text_forms import timestamp
from ledger.errors import FormatError
from ledger.keys.signer import Signer, is_device, open_signer
from services.cli.foreign_heads import convert, hub_head
from services.cli.frame import options
from services.cli.frame.exits import UsageError
from services.cli.frame.options import registry_at
from services.cli.frame.output import answer, members, remark, steps, transfers
from services.cli.frame.values import expect_folder, expect_name, numbers
from services.cli.heads.fetch import Base, Reference, head_document
from services.client.errors import InvalidArgument
from services.client.head_folder import CONFIG_FILE, TRAINING_FILE, HeadFolderInvalid, manifest_of, training_of
from services.client.registry import Head, RegistryClient, upload
from services.generation.target.errors import TargetError
from services.generation.target.model_path import HEAD_FOLDER

_Source = tuple[NamedFile, Callable[[], IO[bytes]]]


def push(
    folder: Annotated[
        Path,
        Argument(
            help="A head: a folder with config.json and model.safetensors, or hf:OWNER/REPOSITORY[@REVISION] of a hub. "
            "Layouts of SafeAILab, SpecForge and speculators are converted to kolm's."
        ),
    ],
    name: Annotated[str, Option(help="The name to publish it under.")],
    model: options.TrainedOn = options.MODEL,
    feature_layers: Annotated[
        str | None,
        Option(metavar="N,N,N", help="Layers that a head in another layout reads, if its config.json is wrong."),
    ] = None,
    publisher: Annotated[str | None, Option(help="The publisher's name. Default: the user's name.")] = None,
    annotate: Annotated[
        list[str] | None, Option(metavar="KEY=TEXT", help="Annotation of the manifest; may be repeated.")
    ] = None,
    registry: options.Registry = options.REGISTRY,
    paths: options.Paths = options.PATHS,
    key: options.PublisherKey = None,
    key_passphrase_file: options.KeyPassphrase = None,
    json: options.Json = False,
) -> None:
    """Publish a head: sign it, upload missing files, record it in the log. If interrupted, run it again to continue."""
    publisher = expect_name("--publisher", _user() if publisher is None else publisher)
    notes = _annotations(annotate or [])
    layers = None if feature_layers is None else numbers("--feature-layers", feature_layers, int)
    if str(folder).startswith("hf:"):
        folder, layers = hub_head("FOLDER", str(folder), model, layers, ask_hub=True), None
    expect_folder("FOLDER", folder, HEAD_FOLDER)

    us = Publisher.load(paths.key("publisher", key), paths.trusted, passphrase_file=key_passphrase_file)
    with registry_at(registry) as client, us.explaining(), in_own_layout(folder, model, layers) as own:
        pushed = push_head(client, Description(own, model, name, publisher, notes), us.key)
    document = head_document(pushed.head) | members(pushed, "created", "sent")
    index = next(each["ledger_index"] for each in document["publications"] if each["name"] == name)
    verb = "published" if pushed.created else "was published already:"
    answer(json, document, lambda head: [f"{verb} {name}, entry {index}", head["head_cid"]])
    if pushed.created and not json:
        remark(f"generation services load heads at their start: restart them, with --head {name} if they had --head")


def withdraw(
    reference: Reference,
    reason: Annotated[str, Option(help="The reason; goes into the log.")],
    base: Base = None,
    registry: options.Registry = options.REGISTRY,
    paths: options.Paths = options.PATHS,
    key: options.PublisherKey = None,
    key_passphrase_file: options.KeyPassphrase = None,
    by_operator: Annotated[
        bool, Option("--by-operator", help="Sign as operator instead. Default key: <data-dir>/keys/operator.pem.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Withdraw a head for good, under all of its names: no generation service loads it again."""
    role = "operator" if by_operator else "publisher"
    with registry_at(registry) as client:
        found = client.resolve(reference, base_cid=base, include_withdrawn=True)
        us = Publisher.load(paths.key(role, key), paths.trusted, role, key_passphrase_file)  # made if missing
        document = DraftHeadWithdrawal(found.head_cid, reason, timestamp(datetime.now(UTC)))
        with us.explaining():
            head = client.withdraw(_signed(document, us.key))
    verb = "withdrawn" if found.withdrawal is None else "was withdrawn already"
    line = f"{verb}, entry {{ledger_index}}: {{reason}}"
    answer(json, head_document(head), lambda head: [line.format(**head["withdrawal"]), head["head_cid"]])


def _user() -> str:
    """The name of the process's user. Raises UsageError."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        raise UsageError("--publisher: this user has no name; name the publisher") from None


def _annotations(words: list[str]) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    if not all(equals and key for key, equals, _ in pairs):
        raise UsageError("--annotate: expected KEY=TEXT")
    return {expect_name("--annotate", key): text for key, _, text in pairs}


@dataclass(frozen=True, slots=True)
class Description:
    """A head to publish: its folder in kolm's layout, the base that it was trained on, its name, and annotations."""

    folder: Path
    model: Path
    name: str
    publisher: str
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of a push. `created` is False if the head had the name already; `sent` are the uploaded files."""

    head: Head
    created: bool
    sent: tuple[str, ...]


@contextmanager
def in_own_layout(folder: Path, model: Path, feature_layers: tuple[int, ...] | None) -> Iterator[Path]:
    """A folder with the head in kolm's layout: `folder`, or a temporary conversion of it. Raises UsageError."""
    from services.generation.drafting.block import block_checkpoint
    from services.generation.drafting.eagle3 import checkpoint

    try:
        config = parse_json((folder / CONFIG_FILE).read_bytes(), CONFIG_FILE)
    except FormatError:
        config = None  # `_describe_head` refuses it
    if not isinstance(config, dict) or config.get("layout") in (checkpoint.LAYOUT, block_checkpoint.LAYOUT):
        if feature_layers is not None:
            raise UsageError(f"--feature-layers: {folder} is in kolm's layout, which names them", "leave the flag out")
        yield folder
        return

    with tempfile.TemporaryDirectory() as scratch:
        written = convert(folder, Path(scratch) / "head", model, feature_layers)
        layers = ", ".join(map(str, written.feature_layers))
        remark(f"converted from {written.origin}'s layout to kolm's: it reads the features of layers {layers}")
        yield Path(scratch) / "head"


def push_head(registry: RegistryClient, head: Description, key: Signer) -> Pushed:
    """Sign a head's publication, upload the missing files and record it in the log. Raises UsageError, KolmError."""
    base = _describe_base(head.model)
    with steps("checking the head with its base"):
        manifest = _describe_head(head, base.cid)
    publication = DraftHeadPublication(manifest.cid, head.name, base.cid, head.publisher, timestamp(datetime.now(UTC)))
    envelope = _signed(publication, key)  # before the upload, so that a wrong name is refused early
    sent = _send(registry, _sources(manifest, head.folder, base, head.model))
    published, created = registry.publish(manifest.to_bytes(), envelope)
    return Pushed(published, created, tuple(sent))


def _signed(document: DraftHeadPublication | DraftHeadWithdrawal, key: Signer) -> bytes:
    try:
        return sign_document(document, key).to_bytes()
    except FormatError as error:
        raise UsageError(f"--{error.field}: {error.problem}") from error


def _describe_base(model: Path) -> BaseManifest:
    """The manifest of a model. Raises UsageError."""
    from services.generation.target.identity import FileDigests, base_manifest

    if not model.exists():
        raise UsageError(f"--model: there is no folder or file {model}", "name the base that the head was trained on")
    with transfers("hashing") as progress:
        digests = FileDigests(progress=lambda path, at: progress(path.name, at, path.stat().st_size))
        try:
            return base_manifest(model, digests)
        except (TargetError, OSError) as error:
            raise UsageError(f"--model: {error}") from error


def _describe_head(head: Description, base_cid: str) -> DraftHeadManifest:
    """The head's manifest. Raises UsageError for a folder without a head, or with a head of another base."""
    try:
        trained_on = training_of(head.folder).get("base_cid")
        if trained_on not in (None, base_cid):
            place = head.folder / TRAINING_FILE
            raise UsageError(
                f"--model: {head.model} is {base_cid}; in {place} the head was trained on {trained_on}",
                "name the base that it was trained on",
            )
        manifest = manifest_of(head.folder, base_cid, head.annotations)
        _check_fits(head)
        return manifest
    except HeadFolderInvalid as error:
        raise UsageError(str(error)) from error


def _check_fits(head: Description) -> None:
    """Load the head as the generation service does. Raises UsageError, which names head and base."""
    from services.generation.drafting.heads import HeadError
    from services.generation.drafting.methods import load_head
    from services.generation.target.config.config import read_config
    from services.generation.target.without_torch import hide_torch

    hide_torch()
    try:
        load_head(head.folder, read_config(head.model))
    except (HeadError, TargetError) as error:
        raise UsageError(
            f"the head {head.folder} is not for the base {head.model} (--model): {error}",
            "name the base that it was trained on",
        ) from error


def _sources(manifest: DraftHeadManifest, folder: Path, base: BaseManifest, model: Path) -> list[_Source]:
    """The files to upload for a publication: the head's files, the base's manifest, the base's config.json."""
    from services.generation.target.identity import model_config

    described = base.to_bytes()
    base_part = NamedFile("base manifest", len(described), f"sha256:{hashlib.sha256(described).hexdigest()}")
    files: list[_Source] = [(part, lambda name=part.name: (folder / name).open("rb")) for part in manifest.files]  # type: ignore[misc]
    config = model_config(model)
    return [*files, (base_part, lambda: io.BytesIO(described)), (base.model_config, lambda: io.BytesIO(config))]


def _send(registry: RegistryClient, sources: list[_Source]) -> list[str]:
    sent = []
    with transfers("uploading") as progress:
        for part, opened in sources:
            if upload(registry, part, opened, lambda at, part=part: progress(part.name, at, part.size)):  # type: ignore[misc]
                sent.append(part.name)
    return sent


@dataclass(frozen=True, slots=True)
class Publisher:
    """The key of a publisher or an operator; `public` is the file with its public half."""

    key: Signer
    public: Path

    @classmethod
    def load(cls, path: Path, trusted: Path, role: str = "publisher", passphrase_file: Path | None = None) -> Publisher:
        """The key at `path`, created if it is missing. Its public half is written into `trusted`; without this folder,
        next to the key or, for a key in a device, into the current folder. Raises KeyFileError.
        """
        is_new = not (is_device(path) or path.exists())
        key = open_signer(path, role, passphrase_file, create=True)
        public = key.publish(trusted if trusted.is_dir() else Path() if is_device(path) else path.parent)
        if is_new:
            kind = f"{'an' if role == 'operator' else 'a'} {role}'s"
            remark(f"made {kind} key, {path}; others need {public} to trust it")
        return cls(key, public)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Turn the refusal of an unknown key into UsageError, with a hint on how to have the key trusted."""
        try:
            yield
        except InvalidArgument as error:
            if error.reason != "UNTRUSTED_SIGNATURE":
                raise
            raise UsageError(
                error.message,
                f"have {self.public} added to the trusted keys of the registry and the ledger (`kolm trust add`); "
                "restart them if they run and trust a publisher already",
            ) from error
