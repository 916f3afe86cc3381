"""A hub on this machine, in the protocol of huggingface.co, with the faults that tests ask it for; Ollama's folder."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.fakes.http_server import QuietHandler, handled_by


@dataclass
class FakeHub:
    """A repository as revisions of files; `main` names a commit. Changes count from the next request on.

    `others` are further repositories by name, at their newest commit.
    """

    repo: str = "maker/model-GGUF"
    others: dict[str, "FakeHub"] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    main: str = ""
    token: str | None = None
    gated: bool = False
    cuts: list[int] = field(default_factory=list)  # the next answers end after so many bytes
    served: dict[str, bytes] = field(default_factory=dict)  # instead of the announced files
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, range
    port: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def commit(self, files: dict[str, bytes]) -> str:
        """A new commit, which is `main` from here on."""
        self.main = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[self.main] = files
        return self.main

    @property
    def fetched(self) -> list[tuple[str, str | None]]:
        """Files that were asked for, and from which byte on."""
        return [(path.rpartition("/")[2], part) for method, path, part in self.asked if "/resolve/" in path]

    def answer(self, path: str, sent_token: str | None) -> tuple[int, dict[str, str], bytes]:
        """Status, headers, body."""
        if self.token is not None and sent_token != f"Bearer {self.token}":
            return 401, {"X-Error-Code": "RepoNotFound"}, b"{}"
        parts = unquote(urlsplit(path).path).strip("/").split("/")
        of_api = parts[:2] == ["api", "models"]
        parts = parts[2:] if of_api else parts
        if (other := self.others.get("/".join(parts[:2]))) is not None:
            return other.answer(path, sent_token)
        if "/".join(parts[:2]) != self.repo:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        if self.gated:
            return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
        revision = parts[3] if len(parts) > 3 else "main"
        commit = self.main if revision == "main" else revision
        if commit not in self.commits:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        files = self.commits[commit]
        if of_api:
            listed = [_described(name, content) for name, content in files.items()]
            model = {"id": self.repo, "sha": commit, "tags": ["gguf", "license:apache-2.0"], "siblings": listed}
            return 200, {"Content-Type": "application/json"}, json.dumps(model).encode()
        name = "/".join(parts[4:])
        if name not in files:
            return 404, {"X-Error-Code": "EntryNotFound"}, b"{}"
        return 200, {"Accept-Ranges": "bytes"}, self.served.get(name, files[name])


def _described(name: str, content: bytes) -> dict[str, Any]:
    git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    described: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git}
    if name.endswith((".gguf", ".safetensors")):
        digest = hashlib.sha256(content).hexdigest()
        described["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
    return described


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """In this block it answers on a port of its own."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            part = self.headers.get("range")
            hub.asked.append(("GET", self.path, part))
            status, headers, body = hub.answer(self.path, self.headers.get("authorization"))
            if status == 200 and part is not None:
                first = int(part.removeprefix("bytes=").partition("-")[0])
                if first >= len(body):
                    status, headers, body = 416, {}, b""
                else:
                    headers["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
                    status, body = 206, body[first:]
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body)), "Connection": "close"}.items():
                self.send_header(name, value)
            self.end_headers()
            if "/resolve/" in self.path and hub.cuts:
                body = body[: hub.cuts.pop(0)]
            self.wfile.write(body)

    with handled_by(Handler) as hub.port:
        yield hub


@contextmanager
def serving_the_library(hub: FakeHub, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """In this block it answers huggingface_hub, which caches in `folder`/hub. No models of the machine's are found."""
    from huggingface_hub import constants, file_download

    caches = {"HF_HUB_CACHE": "hub", "XDG_CACHE_HOME": "xdg"}
    models = {"KOLM_MODELS": "models", "OLLAMA_MODELS": "ollama", "LMSTUDIO_MODELS": "lmstudio"}
    for variable, name in (caches | models).items():
        patch.setenv(variable, str(folder / name))
    for variable in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        patch.delenv(variable, raising=False)
    patch.setattr(file_download, "time", SimpleNamespace(sleep=lambda seconds: None))
    patch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 500)
    with serving(hub):
        place = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.endpoint)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", place)  # what HF_ENDPOINT sets at the start
        patch.setattr(constants, "ENDPOINT", hub.endpoint)
        yield hub


def ollama_model(folder: Path, manifest: str, content: bytes, *, digest: str | None = None, **more: str) -> Path:
    """A model as Ollama keeps it."""
    digest = digest or "sha256:" + hashlib.sha256(content).hexdigest()
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": digest, "size": len(content)}]
    layers += [{"mediaType": f"application/vnd.ollama.image.{kind}", "digest": of} for kind, of in more.items()]
    place = folder / "ollama" / "manifests" / manifest
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    blob = folder / "ollama" / "blobs" / digest.replace(":", "-")
    (folder / "ollama" / "blobs").mkdir(exist_ok=True)
    if "/" not in digest:
        blob.write_bytes(content)
    return blob
