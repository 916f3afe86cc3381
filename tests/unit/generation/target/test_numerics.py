"""Bits of passes and kernels: equal to the vectors, and independent of every split."""

import hashlib
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ledger.documents.manifests import BaseManifest
from services.generation.target import identity
from services.generation.target.arrays import Float32
from services.generation.target.config.rope import rotary
from services.generation.target.errors import ConfigInvalid, ModelNotFound
from services.generation.target.identity import FileDigests, base_cid, base_manifest, model_config, tokenizer_cid
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.numerics import operations
from tests.numerics.arithmetic import assert_same_bits
from tests.numerics.exponential import exponential_by_kernel
from tests.numerics.kernels import KernelArithmetic
from tests.numerics.model import Forward, by_kernels, by_reference, check_model
from tests.numerics.reference import ReferenceArithmetic
from tests.numerics.sampling import EngineSampling, ReferenceSampling, Sampling, functions, noises, outcome
from tests.numerics.vectors import FOLDER, SECTIONS, check, read, values_of
from tests.vectors.make_numerics import files


@pytest.mark.slow
def test_the_files_are_what_the_reference_makes_of_them() -> None:
    made = files()
    assert {f"numerics/{path.name}": path.read_bytes() for path in FOLDER.iterdir()} == made
    assert sum(map(len, made.values())) < 600_000


@pytest.mark.parametrize("section", SECTIONS)
def test_the_reference_gives_the_bits_in_the_files(section: str) -> None:
    check(section, ReferenceArithmetic())


@pytest.mark.slow
@pytest.mark.parametrize("turns", [1, 3, 29])
@pytest.mark.parametrize("section", SECTIONS)
def test_kernels_give_the_bits_in_the_files(section: str, turns: int) -> None:
    check(section, KernelArithmetic(), turns)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_team_gives_the_bits_in_the_files(section: str) -> None:
    check(section, KernelArithmetic(members=3))


@pytest.mark.parametrize("exponential", [operations.exp, exponential_by_kernel], ids=["reference", "kernel"])
def test_the_exponential_function_gives_the_bits_in_the_file(exponential: Callable[[Float32], Float32]) -> None:
    case = read("elementary")[0]
    assert_same_bits(exponential(values_of(case["x"])), values_of(case["exp"]))


def test_the_frequencies_are_those_in_the_file() -> None:
    for case in read("rotation"):
        expected = values_of(case["frequencies"])
        found = rotary(case["parameters"], 2 * len(expected), 8192)
        assert found == (tuple(expected.tolist()), case["attention_factor"])


@pytest.mark.parametrize("forward", [by_reference, by_kernels])
def test_a_whole_model_gives_the_logits_in_the_file(forward: Forward) -> None:
    check_model(read("model"), forward)


@pytest.mark.parametrize("sampling", [ReferenceSampling(), EngineSampling()], ids=["reference", "engine"])
def test_sampling_gives_the_bits_and_tokens_in_the_file(sampling: Sampling) -> None:
    written = read("sampling")
    assert functions(sampling, written["functions"]["at"]) == written["functions"]["expected"]
    assert noises(sampling, written["noise"]["at"]) == written["noise"]["expected"]
    for case in written["rows"]:
        assert outcome(sampling, case) == case["expected"]


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


def test_a_gguf_file_is_named_by_its_bytes_alone(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "SmolLM2-135M.Q4_1.gguf")
    manifest = base_manifest(path)
    assert BaseManifest.from_bytes(manifest.to_bytes()) == manifest
    assert [part.name for part in manifest.weights] == ["model.gguf"]
    assert path.rename(tmp_path / "other.gguf")
    assert base_cid(tmp_path / "other.gguf") == manifest.cid
    assert base_cid(make_tiny_gguf(tmp_path / "more.gguf", seed=1)) != manifest.cid


def test_the_sizes_that_a_registry_holds_heads_against_are_part_of_the_manifest(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "m.gguf")
    described = model_config(path)
    assert described == b'{"hidden_size":256,"num_hidden_layers":1,"vocab_size":384}'
    part = base_manifest(path).model_config
    assert (part.size, part.digest) == (len(described), "sha256:" + hashlib.sha256(described).hexdigest())


def test_a_directory_describes_itself_by_its_own_file(model: Path) -> None:
    assert model_config(model) == b"config.json"


def test_files_with_one_tokenizer_can_draft_for_each_other(tmp_path: Path) -> None:
    large = tokenizer_cid(make_tiny_gguf(tmp_path / "large.gguf", layers=2))
    assert tokenizer_cid(make_tiny_gguf(tmp_path / "small.gguf", storage="q8_0", seed=1)) == large
    for field, value in (("tokenizer.ggml.eos_token_id", 2), ("tokenizer.chat_template", "{{ messages }}")):
        change = make_tiny_gguf(tmp_path / "changed.gguf", change_metadata=lambda m, f=field, v=value: m.update({f: v}))
        assert tokenizer_cid(change) != large


def test_a_gguf_file_without_sizes_has_no_identifier(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "m.gguf", change_metadata=lambda m: m.pop("llama.block_count"))
    with pytest.raises(ConfigInvalid, match=r"llama\.block_count"):
        base_cid(path)
    with pytest.raises(ModelNotFound):
        base_cid(tmp_path / "none.gguf")


def test_a_large_file_is_hashed_once_as_long_as_it_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "LARGE_BYTES", 4)
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
    for broken in (b"{broken", b"[" * 100_000):
        cache.write_bytes(broken)
        assert digest() == first
    assert hashed.count(13) == 6  # each call reports the whole file as hashed


def test_two_threads_that_ask_for_a_digest_hash_the_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "LARGE_BYTES", 1)
    (large := tmp_path / "model").write_bytes(b"weights")
    both, hashed, honest = threading.Barrier(2), list[Path](), FileDigests._hash

    def counted(self: FileDigests, path: Path) -> str:
        hashed.append(path)
        return honest(self, path)

    monkeypatch.setattr(FileDigests, "_hash", counted)

    def ask(_: int) -> str:
        both.wait()
        return FileDigests(tmp_path / "digests.json").digest(large)

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(ask, range(2)))) == 1
    assert hashed == [large]


def test_a_digest_that_is_kept_while_another_file_is_hashed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "LARGE_BYTES", 1)
    (large := tmp_path / "model").write_bytes(b"weights")
    (packed := tmp_path / "packed").write_bytes(b"panels")
    cache = tmp_path / "digests.json"
    FileDigests(cache, lambda path, position: FileDigests(cache).keep(packed, "sha256:0")).digest(large)
    assert json.loads(cache.read_bytes()).keys() == {str(large), str(packed)}


def test_a_cache_that_cannot_be_written_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "LARGE_BYTES", 1)
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "data").write_bytes(b"abc")
    assert FileDigests(tmp_path / "file" / "digests.json").digest(tmp_path / "data").endswith("20015ad")
