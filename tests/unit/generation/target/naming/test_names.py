"""Names of models, which file of a repository is meant, and folders of other programs."""

from pathlib import Path

import pytest

from services.generation.target.errors import ModelNotFound
from services.generation.target.files.part_names import sidecar_of
from services.generation.target.model_path import model_path, name_of, named_models
from services.generation.target.naming.folders import found_here
from services.generation.target.naming.hub_names import HubName, choose
from tests.fakes.hub import ollama_model

GB = 10**9
SIZES = {
    "m-F16.gguf": 8 * GB,
    "m-Q8_0.gguf": 4 * GB,
    "m-Q6_K.gguf": 3 * GB,
    "m-Q4_K_M.gguf": 2 * GB,
    "m-Q2_K.gguf": 1 * GB,
    "mmproj-m-f16.gguf": GB,
    "mtp-m-Q4_K_M.gguf": GB,
    "README.md": 100,
}


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("hf:a/b", HubName("a/b")),
        ("hf:a/b:Q4_K_M", HubName("a/b", wanted="Q4_K_M")),
        ("hf:a/b@v1.0:sub/m.gguf", HubName("a/b", "v1.0", "sub/m.gguf")),
        ("qwen3:4b", HubName("Qwen/Qwen3-4B-GGUF")),
        ("smollm2", None),
        ("some/path", None),
    ],
)
def test_a_name_says_repository_revision_and_file(named: str, meant: HubName | None) -> None:
    assert HubName.of(named) == meant
    if named.startswith("hf:"):
        assert str(meant) == named


@pytest.mark.parametrize(
    "named", ["hf:", "hf:a", "hf:a/b/c", "hf:../b", "hf:a/b:", "hf:a/b@:x", "hf:a/..:x:y", "hf:a/b@/x", "hf:a/b@x/../y"]
)
def test_a_wrong_name_is_refused(named: str) -> None:
    with pytest.raises(ModelNotFound):
        HubName.of(named)


@pytest.mark.parametrize(
    ("memory", "file"), [(40, "m-Q8_0.gguf"), (30, "m-Q6_K.gguf"), (16, "m-Q4_K_M.gguf"), (6, "m-Q4_K_M.gguf")]
)
def test_more_memory_brings_more_bits_up_to_eight(memory: int, file: str) -> None:
    assert choose(SIZES, HubName("a/b"), memory * GB) == file


def test_files_that_do_not_fit_are_listed_with_sizes_but_a_named_file_is_used() -> None:
    with pytest.raises(ModelNotFound):
        choose(SIZES, HubName("a/b"), 4 * GB)
    assert choose(SIZES, HubName("a/b", wanted="q8_0"), 4 * GB) == "m-Q8_0.gguf"
    assert choose(SIZES, HubName("a/b", wanted="m-F16.gguf"), 4 * GB) == "m-F16.gguf"
    with pytest.raises(ModelNotFound):
        choose(SIZES, HubName("a/b", wanted="Q5_0"), 4 * GB)


def test_parts_and_projectors_are_no_models_and_safetensors_are_a_folder() -> None:
    parts = {"m-Q4_0-00001-of-00002.gguf": GB, "mmproj-f16.gguf": GB}
    with pytest.raises(ModelNotFound, match="m-Q4_0-00002-of-00002"):
        choose(parts, HubName("a/b"), 40 * GB)
    with pytest.raises(ModelNotFound, match="m-Q4_0-00002-of-00002"):
        choose(parts | {"m-Q8_0.gguf": GB}, HubName("a/b", wanted="Q4_0"), 40 * GB)
    assert choose({**parts, "model.safetensors": GB}, HubName("a/b"), 40 * GB) is None


@pytest.mark.parametrize(
    ("file", "sidecar"),
    [
        ("m-Q4_K_M.gguf", "mtp-m-Q4_K_M.gguf"), ("m-Q6_K.gguf", "mtp-m-BF16.gguf"), ("m-2-Q4_K_M.gguf", None),
        ("m-Q8_0-00001-of-00002.gguf", "mtp-m-BF16.gguf"), ("x/m-Q4_K_M.gguf", "x/mtp-m-Q8_0.gguf"), ("y/m.gguf", None),
        ("n-Q8_0.gguf", "mtp-n-Q8_0-00001-of-00002.gguf"), ("n-00001-of-00003.gguf", "mtp-n-BF16.gguf"),
        ("n-Q8_0-00001-of-00003.gguf", "mtp-n-Q8_0-00001-of-00002.gguf"),
    ],
)  # fmt: skip
def test_a_sidecar_has_its_model_s_folder_and_name_in_any_quantisation(file: str, sidecar: str | None) -> None:
    files = ["mtp-m-Q4_K_M.gguf", "mtp-m-BF16.gguf", "x/mtp-m-Q8_0.gguf", "mtp-other.gguf", file]
    files += ["mtp-n-Q8_0-00002-of-00002.gguf", "mtp-n-Q8_0-00001-of-00002.gguf", "mtp-n-BF16.gguf"]
    assert sidecar_of(file, files) == sidecar


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable, name in (("HF_HUB_CACHE", "hub"), ("OLLAMA_MODELS", "ollama"), ("LMSTUDIO_MODELS", "lmstudio")):
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setenv("KOLM_MODELS", str(tmp_path / "models"))
    return tmp_path


def test_ollamas_models_are_found_by_their_names_there(folders: Path) -> None:
    blob = ollama_model(folders, "registry.ollama.ai/library/qwen3/4b", b"GGUF of qwen", license="sha256:1")
    other = ollama_model(folders, "hf.co/maker/model-GGUF/latest", b"GGUF of another")
    assert model_path("qwen3:4b") == model_path("ollama:qwen3:4b") == blob
    assert model_path("ollama:hf.co/maker/model-GGUF") == other
    assert (name_of(blob), name_of(other)) == ("qwen3:4b", "hf.co/maker/model-GGUF:latest")
    listed = {each.name: each.origin for each in named_models() if each.path}
    assert listed.items() >= {("qwen3:4b", "hub"), ("ollama:hf.co/maker/model-GGUF:latest", "ollama")}
    with pytest.raises(ModelNotFound):
        model_path("qwen3:8b")


def test_lm_studios_files_are_found_by_publisher_and_repository(folders: Path) -> None:
    place = folders / "lmstudio" / "maker" / "model-GGUF"
    place.mkdir(parents=True)
    (place / "m-Q4_K_M.gguf").write_bytes(b"GGUF")
    assert model_path("lmstudio:maker/model-GGUF") == place / "m-Q4_K_M.gguf"
    (place / "m-Q8_0.gguf").write_bytes(b"GGUF")
    assert model_path("lmstudio:maker/model-GGUF:q8_0") == place / "m-Q8_0.gguf"
    with pytest.raises(ModelNotFound):
        model_path("lmstudio:maker/model-GGUF")


@pytest.mark.parametrize(
    ("named", "meant"),
    [("qwen3:5b", "qwen3:4b"), ("smolm2", "smollm2"), ("maker/model", "hf:maker/model"), ("x", "hf:")],
)
def test_a_name_that_is_none_is_answered_with_what_it_may_mean(named: str, meant: str, folders: Path) -> None:
    with pytest.raises(ModelNotFound) as refused:
        model_path(named)
    assert meant in str(refused.value)


@pytest.mark.parametrize("damage", ["not UTF-8", "unreadable"])
def test_a_damaged_ref_hides_no_model(damage: str, folders: Path) -> None:
    for name in "ab":
        repository = folders / "hub" / f"models--maker--{name}"
        for file in ("refs/main", f"snapshots/{'0' * 40}/m-Q4_K_M.gguf"):
            (repository / file).parent.mkdir(parents=True)
            (repository / file).write_text("0" * 40)
    ref = folders / "hub" / "models--maker--a" / "refs" / "main"
    ref.unlink()
    ref.write_bytes(b"\xff") if damage == "not UTF-8" else ref.symlink_to("/proc/self/mem")
    assert [each.name for each in found_here()] == [f"hf:maker/a@{'0' * 40}:Q4_K_M", "hf:maker/b:Q4_K_M"]
    with pytest.raises(ModelNotFound):
        model_path("hf:maker/a")


def test_a_configuration_alone_in_the_cache_is_no_model(folders: Path) -> None:
    snapshot = folders / "hub" / "models--maker--model" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    for name in ("config.json", "tokenizer.json"):
        (snapshot / name).write_text("{}")
    for index in ("{}", "[" * 100_000):
        (snapshot / "model.safetensors.index.json").write_text(index)
        assert found_here() == []
        with pytest.raises(ModelNotFound):
            model_path("hf:maker/model")
    (snapshot / "model.safetensors").touch()
    assert model_path("hf:maker/model") == snapshot
