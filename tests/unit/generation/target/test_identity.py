"""Identifiers of a base: what they cover, and the cache behind them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ledger.base_manifest import BaseManifest
from services.generation.target import digests
from services.generation.target.digests import FileDigests
from services.generation.target.identity import base_cid, base_manifest


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (directory / name).write_bytes(name.encode())
    return directory


def test_the_manifest_names_itself_and_follows_every_byte(model: Path) -> None:
    manifest = base_manifest(model)
    assert BaseManifest.from_bytes(manifest.to_bytes()) == manifest
    assert manifest.cid == base_cid(model)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        before = (model / name).read_bytes()
        (model / name).write_bytes(before + b" ")
        assert base_cid(model) != manifest.cid
        (model / name).write_bytes(before)
    assert base_cid(model) == manifest.cid


def test_a_large_file_is_hashed_once_as_long_as_it_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "LARGE_BYTES", 4)
    hashed: list[int] = []
    large, cache = tmp_path / "large", tmp_path / "cache" / "digests.json"
    large.write_bytes(b"first weights")

    def digest() -> str:
        return FileDigests(cache, lambda path, position: hashed.append(position)).digest(large)

    first = digest()
    assert first == digest() == FileDigests(tmp_path / "none.json").digest(large)
    large.write_bytes(b"other weights")
    os.utime(large, ns=(0, 0))
    other = digest()
    assert other != first
    (model := tmp_path / "moved").write_bytes(b"first weights")
    os.replace(model, large)
    assert digest() == first
    cache.write_bytes(b"{broken")
    assert digest() == first
    assert hashed.count(13) == 5  # each call says that all of it is done


def test_a_cache_that_cannot_be_written_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "LARGE_BYTES", 1)
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "data").write_bytes(b"abc")
    assert FileDigests(tmp_path / "file" / "digests.json").digest(tmp_path / "data").endswith("20015ad")
