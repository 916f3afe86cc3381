"""Download of models from a hub (huggingface.co, or HF_ENDPOINT) into the cache of huggingface_hub.

The library provides the protocol, credentials (HF_TOKEN), proxies, offline mode and retries. It restarts interrupted
downloads and checks no digest, so files are written here: into a partial file, which a later call continues, and which
is moved into the cache once its digest is right.

    HubError
    ├── HubAway        it does not answer; downloaded bytes are kept
    ├── HubRefused     it requires a token with access to this repository
    ├── NotOnHub       no such repository, revision or file
    └── DigestWrong    a file has another digest than announced; it was removed
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeGuard

from ledger.durable_file import move_durably
from services.generation.target.errors import ModelNotFound
from services.generation.target.files.part_names import missing_part, sidecar_of
from services.generation.target.identity import TOKENIZER_FILES, FileDigests
from services.generation.target.naming.folders import repo_folder
from services.generation.target.naming.hub_names import HubName, choose, files_of, memory_at_hand

_INDEX = "model.safetensors.index.json"
_CONFIGURATION = {"config.json", "generation_config.json", _INDEX, *TOKENIZER_FILES}
_HEAD_CONFIG = "config.json"
_HEAD_WEIGHTS = (".safetensors", ".bin")
"""Endings of a head's weights, the preferred ending first."""
_TOKEN = "set HF_TOKEN to a token with access to it, after you have accepted the conditions on the repository's page"


class HubError(Exception):
    """A model that cannot be fetched; the message has the source and the reason."""


class HubAway(HubError):
    """The hub does not answer, or stopped answering."""


class HubRefused(HubError):
    """The hub does not allow this caller to read the repository."""


class NotOnHub(HubError):
    """There is no such repository, revision or file."""


class DigestWrong(HubError):
    """A file's digest differs from the announced one."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file. `blob`, its name in the cache, is its SHA-256, or git's digest for a small file outside of git LFS."""

    name: str
    size: int
    blob: str


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on a hub, pinned to a commit. `file` is the name of a GGUF file, or of its first part."""

    name: HubName
    commit: str
    licence: str
    files: tuple[HubFile, ...]
    file: str | None

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def missing(self) -> int:
        """Bytes that are not fetched yet."""
        blobs = repo_folder(self.name.repo) / "blobs"
        return sum(file.size - _length(blobs / file.blob, _partial(blobs / file.blob)) for file in self.files)


def _length(*paths: Path) -> int:
    return next((path.stat().st_size for path in paths if path.exists()), 0)


def _partial(blob: Path) -> Path:
    return blob.with_name(f"{blob.name}.kolm-partial")


def look_up(name: HubName, memory: int | None = None) -> HubModel:
    """Ask the hub for a model's commit, files and licence, and choose a GGUF file that suits `memory`.

    Raises HubError, and ModelNotFound if no file of the repository matches or fits.
    """
    found = _repository(name)
    files = found.files
    sizes = {file.name: file.size for file in files.values()}
    chosen = choose(sizes, name, memory if memory is not None else memory_at_hand() or 1 << 62)
    wanted = files_of(chosen) if chosen else [file for file in files if file in _CONFIGURATION or _is_weights(file)]
    if chosen is None and name.wanted:
        raise ModelNotFound(f"{name}: the repository has no GGUF files; leave out {name.wanted}")
    _check_parts(name, wanted)
    if chosen and (beside := sidecar_of(chosen, sizes)):  # its block drafts without a flag
        wanted += [part for part in files_of(beside) if part in sizes]  # the server reports a missing part
    return found.model(name, wanted, chosen)


def look_up_head(name: HubName) -> HubModel:
    """Ask the hub for a draft head's commit, configuration and weights, and its licence.

    Raises HubError, and ModelNotFound if the repository has no config.json, no weights in its root or several without
    an index, or a part of them is missing.
    """
    found = _repository(name)
    if name.wanted:
        raise ModelNotFound(f"{name}: a head is named by its repository alone; leave out :{name.wanted}")
    if _HEAD_CONFIG not in found.files:
        raise ModelNotFound(f"{name}: the repository has no {_HEAD_CONFIG}, so it is no draft head")
    weights = _head_weights(name, found.files)
    _check_parts(name, weights)
    return found.model(name, (_HEAD_CONFIG, *weights), None)


def _head_weights(name: HubName, files: Collection[str]) -> list[str]:
    """A head's file of weights, or all of them with their index. Raises ModelNotFound."""
    if _INDEX in files:
        return [_INDEX, *sorted(filter(_is_weights, files))]
    for ending in _HEAD_WEIGHTS:
        weights = sorted(file for file in files if file.endswith(ending) and "/" not in file)
        if len(weights) > 1:
            shown = ", ".join(weights[:8])
            raise ModelNotFound(f"{name}: {shown}; expected one file of a head's weights, or {_INDEX} with several")
        if weights:
            return weights
    raise ModelNotFound(f"{name}: the repository has no {' and no '.join(f'*{end}' for end in _HEAD_WEIGHTS)}")


def _check_parts(name: HubName, wanted: Collection[str]) -> None:
    if missing := missing_part(wanted):
        raise ModelNotFound(f"{name}: the repository has no {missing}; take another revision, with @REVISION")


@dataclass(frozen=True, slots=True)
class _Repository:
    commit: str
    licence: str
    files: Mapping[str, HubFile]

    def model(self, name: HubName, wanted: Iterable[str], file: str | None) -> HubModel:
        """These files. Raises HubError if the hub announces no digest of one of them."""
        files = tuple(self.files[each] for each in wanted)
        for each in files:
            if not _is_digest(each.blob):
                raise _senseless(name, f"{each.name}: digest", each.blob)
        return HubModel(name, self.commit, self.licence, files, file)


def _repository(name: HubName) -> _Repository:
    """The hub's description, without files whose names cannot be shown or lead out of it. Raises HubError."""
    from huggingface_hub import HfApi

    try:
        with _explained(str(name)):
            info = HfApi().model_info(name.repo, revision=name.revision, files_metadata=True)
        files = {
            each.rfilename: HubFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else each.blob_id or "")
            for each in info.siblings or ()
            if each.rfilename.isprintable() and not {"", "..", "."}.intersection(each.rfilename.split("/"))
        }
        tagged = (tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:"))
        licence = next(tagged, "none is stated")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _senseless(name, "the repository's description", error) from error
    for each in files.values():  # sizes of all files decide which one is fetched
        if not isinstance(each.size, int) or each.size < 0:
            raise _senseless(name, f"{each.name}: size", each.size)
    if not _is_digest(info.sha):
        raise _senseless(name, "sha", info.sha)
    return _Repository(info.sha, licence, files)


def _is_digest(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", value) is not None


def _senseless(name: HubName, member: str, value: object) -> HubError:
    from huggingface_hub import constants

    return HubError(f"{name}: {constants.ENDPOINT} is no hub of models: it announces {member} {value!r:.120}")


def _is_weights(file: str) -> bool:
    return "/" not in file and file.startswith("model") and file.endswith(".safetensors")


def fetch(model: HubModel) -> Path:
    """Fetch and check all files of a model; return its file or folder. Shows progress on a terminal.

    Waits for another process that fetches the same file. Raises HubError.
    """
    folder = repo_folder(model.name.repo)
    snapshot = folder / "snapshots" / model.commit
    free, need = shutil.disk_usage(_existing(folder)).free, model.missing
    if need > free:
        raise HubError(f"{model.name}: needs {need / 1e9:.1f} GB in {folder}; {free / 1e9:.1f} GB are free")
    for file in model.files:
        with _explained(f"{model.name}: {file.name}"):
            _fetch_file(model, file, folder / "blobs" / file.blob)
        link = snapshot / file.name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            draft = link.with_name(f".{link.name}.{os.getpid()}")  # another process may make the link at the same time
            draft.unlink(missing_ok=True)
            draft.symlink_to(os.path.relpath(folder / "blobs" / file.blob, link.parent))
            draft.replace(link)
    ref = folder / "refs" / model.name.revision
    if model.name.revision != model.commit:
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(model.commit)
    return snapshot / model.file if model.file else snapshot


def _existing(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.exists())


def _fetch_file(model: HubModel, file: HubFile, blob: Path) -> None:
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, in no __all__

    if _is_intact(blob):
        return
    blob.parent.mkdir(parents=True, exist_ok=True)
    url = hf_hub_url(model.name.repo, file.name, revision=model.commit)
    with _alone(_partial(blob)) as partial:
        if _is_intact(blob):  # another process has fetched it
            _partial(blob).unlink()
            return
        blob.unlink(missing_ok=True)
        done = min(partial.seek(0, os.SEEK_END), file.size)
        partial.truncate(done)
        partial.seek(done)
        headers, shown = build_hf_headers(library_name="kolm"), file.name
        try:
            # The library refuses to begin a larger file by its size alone; the digest is compared below.
            size = file.size if done or file.size <= constants.MAX_HTTP_DOWNLOAD_SIZE else None
            http_get(url, partial, resume_size=done, expected_size=size, headers=headers, displayed_filename=shown)
        except HfHubHTTPError as error:
            if error.response.status_code == 416:  # there is no rest: the partial file is of another file
                _partial(blob).unlink()
            raise
        partial.flush()
        move_durably(_partial(blob), blob)
        if not _is_intact(blob):
            blob.unlink()
            raise DigestWrong(f"{model.name}: {file.name} has another digest than announced, {blob.name}; removed")


@contextmanager
def _alone(path: Path) -> Iterator[BinaryIO]:
    """A file open for reading and writing, under an exclusive lock."""
    while True:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(path, file):  # else the process before has moved or deleted it
                yield file
                return


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samefile(path, file.fileno())
    except FileNotFoundError:
        return False


def _is_intact(blob: Path) -> bool:
    """Whether a file is there and its digest is its name. Digests of large files are cached for the base's identity."""
    try:
        if len(blob.name) == 64:
            return FileDigests().digest(blob) == f"sha256:{blob.name}"
        content = blob.read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == blob.name


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Raise errors of the library and of its connection as HubError."""
    import httpx2
    from huggingface_hub import constants, errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise HubRefused(f"{what}: the repository is gated; {_TOKEN}") from error
    except errors.RepositoryNotFoundError as error:  # also for a 401
        raise NotOnHub(f"{what}: no such repository, or a private one; {_TOKEN}") from error
    except errors.RevisionNotFoundError as error:
        raise NotOnHub(f"{what}: no such revision") from error
    except errors.RemoteEntryNotFoundError as error:
        raise NotOnHub(f"{what}: the file is gone, the repository has changed; try again") from error
    except errors.OfflineModeIsEnabled as error:
        raise HubAway(f"{what}: not on this machine, and HF_HUB_OFFLINE is set") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        kind = HubRefused if status in (401, 403) else HubAway
        raise kind(
            f"{what}: the hub answered {status}; {_TOKEN if kind is HubRefused else 'try again later'}"
        ) from error
    except (httpx2.HTTPError, ConnectionError) as error:
        raise HubAway(
            f"{what}: {constants.ENDPOINT} does not answer ({error}); downloaded bytes are kept: try again, or serve a "
            "model of this machine (kolm models list)"
        ) from error
    except OSError as error:
        if error.errno is not None:  # of the disk
            raise
        raise HubAway(f"{what}: {error}") from error
