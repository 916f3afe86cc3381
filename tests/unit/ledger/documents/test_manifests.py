"""Manifests of heads and bases: one spelling, every member checked, no name that leads out of its folder."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.documents.manifests import (
    MAX_MANIFEST_BYTES,
    BaseManifest,
    DraftHeadManifest,
    HeadConfig,
    HeadWeights,
    NamedFile,
    Vocabulary,
)
from ledger.encoding.canonical import canonical, parse
from ledger.encoding.text_forms import cid
from ledger.errors import FormatError, LedgerError
from tests.unit.ledger.builders import BASE
from tests.unit.ledger.encoding.test_canonical import JSON_VALUES

HEAD = DraftHeadManifest(
    subject=BASE,
    config=HeadConfig(NamedFile.of("config.json", b"{}")),
    weights=HeadWeights((NamedFile.of("model.safetensors", b"weights"),)),
    hidden_size=64,
    feature_layers=(1, 2, 3),
    vocabulary=Vocabulary(512, 128),
    training={"steps": 7, "data": {"domains": ["code"]}},
    annotations={"licence": "Apache-2.0"},
)
BASE_MANIFEST = BaseManifest(
    (NamedFile.of("config.json", b"{}"),), cid(b"tokenizer"), (NamedFile.of("w.safetensors", b"w"),)
)
NAMES_THAT_LEAD_ASTRAY = [
    "",
    ".",
    "..",
    "../model",
    "/etc/passwd",
    "a/b",
    "a\\b",
    ".hidden",
    "a\0b",
    "a b",
    "ä",
    "x" * 129,
]


def changed(path: str, value: object) -> bytes:
    whole: Any = parse(HEAD.to_bytes())
    part = whole
    *outer, last = path.split(".")
    for name in outer:
        part = part[int(name)] if isinstance(part, list) else part[name]
    part[last] = value
    return canonical(whole)


def test_a_manifest_reads_back_and_is_named_by_its_bytes() -> None:
    assert DraftHeadManifest.from_bytes(HEAD.to_bytes()) == HEAD
    assert HEAD.cid == cid(HEAD.to_bytes())
    assert (HEAD.size, len(HEAD.files)) == (9, 2)
    assert BaseManifest.from_bytes(BASE_MANIFEST.to_bytes()) == BASE_MANIFEST
    assert BASE_MANIFEST.model_config.name == "config.json"


def test_a_head_s_kind_is_that_of_its_media_types() -> None:
    block = DraftHeadManifest.from_bytes(
        HEAD.to_bytes()
        .replace(b"kolm.eagle3.config", b"kolm.block.config")
        .replace(b"kolm.eagle3.weights", b"kolm.block.weights")
    )
    assert (HEAD.kind, block.kind) == ("eagle3", "block")
    assert HEAD.cid != block.cid
    for path, value in (
        ("config.media_type", "application/vnd.kolm.block.config.v1+json"),  # the weights are eagle3's
        ("weights.media_type", "application/vnd.kolm.block.weights.v1+safetensors"),
        ("config.media_type", "application/vnd.kolm.medusa.config.v1+json"),
    ):
        with pytest.raises(FormatError) as caught:
            DraftHeadManifest.from_bytes(changed(path, value))
        assert caught.value.field in ("config.media_type", "weights.media_type")


@pytest.mark.parametrize("name", NAMES_THAT_LEAD_ASTRAY)
def test_a_file_name_that_is_more_than_a_name_is_refused(name: str) -> None:
    with pytest.raises(FormatError) as caught:
        DraftHeadManifest.from_bytes(changed("weights.files.0.name", name))
    assert caught.value.field == "weights.files[0].name"
    assert "regex" not in caught.value.problem  # the message describes the form


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("type", "kolm.head.v2", "type"),
        ("subject", "sha256:00", "subject"),
        ("config.media_type", "application/x-pickle", "config.media_type"),
        ("weights.media_type", "application/x-pickle", "weights.media_type"),
        ("weights.files", [], "weights.files"),
        ("weights.files.0.size", -1, "weights.files[0].size"),
        ("weights.files.0.size", True, "weights.files[0].size"),
        ("weights.files.0.digest", "sha256:xyz", "weights.files[0].digest"),
        ("weights.files.0.name", "config.json", "weights.files"),
        ("hidden_size", 0, "hidden_size"),
        ("feature_layers", [], "feature_layers"),
        ("feature_layers", [-1], "feature_layers[0]"),
        ("vocabulary.draft_size", 513, "vocabulary.draft_size"),
        ("vocabulary.size", 1.5, "vocabulary.size"),
        ("training", [], "training"),
        ("annotations", {"a": 1}, "annotations"),
        ("annotations", {str(word): "" for word in range(257)}, "annotations"),
        ("surprise", 1, "surprise"),
    ],
)
def test_what_is_wrong_with_a_manifest_is_named(path: str, value: object, field: str) -> None:
    with pytest.raises(FormatError) as caught:
        DraftHeadManifest.from_bytes(changed(path, value))
    assert caught.value.field == field


def test_a_manifest_has_one_spelling_and_a_largest_size() -> None:
    for other in (HEAD.to_bytes() + b" ", b" " * (MAX_MANIFEST_BYTES + 1)):
        with pytest.raises(FormatError):
            DraftHeadManifest.from_bytes(other)


def test_a_base_without_config_json_has_none() -> None:
    bare = BaseManifest((NamedFile.of("generation_config.json", b"{}"),), BASE, BASE_MANIFEST.weights)
    with pytest.raises(FormatError, match=r"config\.json"):
        bare.model_config  # noqa: B018


@given(JSON_VALUES)
def test_any_json_in_place_of_a_manifest_raises_only_ledger_errors(value: object) -> None:
    for reader in (DraftHeadManifest, BaseManifest):
        with pytest.raises(LedgerError):
            reader.from_bytes(canonical(value))


@given(st.binary(max_size=64))
def test_any_bytes_in_place_of_a_manifest_raise_only_ledger_errors(data: bytes) -> None:
    with pytest.raises(LedgerError):
        DraftHeadManifest.from_bytes(data)
