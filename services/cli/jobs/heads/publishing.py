"""Publishing a folder: describe, upload, sign."""

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
from typing import IO

from ledger.documents.base_manifest import BaseManifest
from ledger.documents.draft_head_manifest import DraftHeadManifest
from ledger.documents.draft_head_publication import DraftHeadPublication, DraftHeadWithdrawal
from ledger.documents.named_file import NamedFile
from ledger.documents.signed_document import sign_document
from ledger.encoding.canonical import parse_json
from ledger.encoding.timestamp import timestamp
from ledger.errors import FormatError
from ledger.keys.signer import Signer
from services.cli.failures.exits import UsageError
from services.cli.terminal.output import talk
from services.cli.terminal.progress import transfers
from services.client.errors import FailedPrecondition
from services.client.head_folder import CONFIG_FILE, TRAINING_FILE, HeadFolderInvalid, manifest_of, training_of
from services.client.registry import Head, RegistryClient, upload


@dataclass(frozen=True, slots=True)
class Description:
    """A publication: a folder in kolm's layout, the base it was trained on, and annotations."""

    folder: Path
    model: Path
    name: str
    publisher: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pushed:
    """`created` is False if the head had the name already; `sent` are the files that were uploaded."""

    head: Head
    created: bool
    sent: tuple[str, ...]


@contextmanager
def in_own_layout(folder: Path, model: Path, feature_layers: tuple[int, ...] | None) -> Iterator[Path]:
    """The folder of a head in kolm's layout: the given one, or one for the time being. Raises UsageError."""
    from services.registry.head_check import LAYOUT

    try:
        config = parse_json((folder / CONFIG_FILE).read_bytes(), CONFIG_FILE)
    except FormatError:
        config = None  # which is refused where it is read in full
    if not isinstance(config, dict) or config.get("layout") == LAYOUT:
        if feature_layers is not None:
            raise UsageError(f"--feature-layers: {folder} is in kolm's layout, which names them", "leave the flag out")
        yield folder
        return
    from services.cli.jobs.heads.conversion import convert  # needs torch

    with tempfile.TemporaryDirectory() as scratch:
        written = convert(folder, Path(scratch) / "head", model, feature_layers)
        layers = ", ".join(map(str, written.feature_layers))
        talk().print(f"{written.origin}'s layout, written in kolm's: it reads the features of layers {layers}")
        yield Path(scratch) / "head"


def push(registry: RegistryClient, head: Description, key: Signer) -> Pushed:
    """Raises UsageError, KolmError."""
    base = _describe_base(head.model)
    manifest = _describe_head(head, base.cid)
    who = head.publisher or getpass.getuser()
    publication = DraftHeadPublication(manifest.cid, head.name, base.cid, who, timestamp(datetime.now(UTC)))
    envelope = _signed(publication, key)  # before the upload, which a wrong name need not wait for
    sources, sent = _sources(manifest, head.folder, base, head.model), list[str]()
    for last in (False, True):
        sent += _send(registry, sources)
        try:
            published, created = registry.publish(manifest.to_bytes(), envelope)
        except FailedPrecondition as error:  # a collection has removed an old blob meanwhile
            if last or error.reason not in ("BLOB_MISSING", "BASE_UNKNOWN"):
                raise
        else:
            break
    return Pushed(published, created, tuple(sent))


def withdraw(registry: RegistryClient, head_cid: str, reason: str, key: Signer) -> Head:
    """Raises UsageError, KolmError."""
    return registry.withdraw(_signed(DraftHeadWithdrawal(head_cid, reason, timestamp(datetime.now(UTC))), key))


def _signed(document: DraftHeadPublication | DraftHeadWithdrawal, key: Signer) -> bytes:
    try:
        return sign_document(document, key).to_bytes()
    except FormatError as error:
        raise UsageError(f"--{error.field}: {error.problem}") from error


def _describe_base(model: Path) -> BaseManifest:
    """The manifest of a model. Raises UsageError."""
    from services.generation.target.errors import TargetError
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
    """Raises UsageError if the folder holds no head, or says that the head was trained on another base."""
    try:
        said = training_of(head.folder).get("base_cid")
        if said not in (None, base_cid):
            place = head.folder / TRAINING_FILE
            raise UsageError(
                f"--model: {head.model} is {base_cid}; {place} says that the head was trained on {said}",
                "name the base that it was trained on",
            )
        manifest = manifest_of(head.folder, base_cid, head.annotations)
        _check_fits(head)
        return manifest
    except HeadFolderInvalid as error:
        raise UsageError(str(error)) from error


def _check_fits(head: Description) -> None:
    """Makes the registry's checks before the upload. Raises UsageError, which names head and base."""
    from services.generation.target.identity import model_config
    from services.registry.errors import BaseMismatch
    from services.registry.head_check import HeadConfig, check_fits

    try:
        config = HeadConfig.from_bytes((head.folder / CONFIG_FILE).read_bytes())
        check_fits(config, model_config(head.model))
    except BaseMismatch as error:
        raise UsageError(
            f"the head {head.folder} is not for the base {head.model} (--model): {error.message}",
            "name the base that it was trained on",
        ) from error
    except FormatError as error:
        raise UsageError(f"{head.folder / CONFIG_FILE}: {error}") from error


_Source = tuple[NamedFile, Callable[[], IO[bytes]]]


def _sources(manifest: DraftHeadManifest, folder: Path, base: BaseManifest, model: Path) -> list[_Source]:
    """Everything that the registry needs: the head's files, the base's manifest, the base's config.json."""
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
