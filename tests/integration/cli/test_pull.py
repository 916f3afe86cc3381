"""Models of a hub: `kolm models pull`, and names that other commands take, against a hub on this machine."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants, try_to_load_from_cache

from services.cli.up.local_services import LocalServices
from services.generation.target.errors import WeightsInvalid
from services.generation.target.identity import base_cid, base_manifest
from services.generation.target.model_path import model_path, name_of
from services.generation.target.naming import hub as naming_hub
from tests import documented
from tests.cli import FREE, kolm
from tests.fakes.hub import FakeHub, ollama_model, serving_the_library
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_model import make_tiny_model

NAME = "hf:maker/model-GGUF"
FILE = "tiny-Q8_0.gguf"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub"


@pytest.fixture
def tiny(tmp_path: Path) -> bytes:
    return make_tiny_gguf(tmp_path / "source.gguf").read_bytes()


@pytest.fixture
def hub(tmp_path: Path, tiny: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serving_the_library(FakeHub(), tmp_path, monkeypatch) as hub:
        hub.commit({FILE: tiny, "README.md": b"# tiny"})
        yield hub


def pulled(name: str = NAME) -> Path:
    done = kolm("models", "pull", name, "--json")
    assert done.code == 0, done.err
    return Path(done.document["path"])


def partial(cache: Path) -> list[Path]:
    return list(cache.rglob("*.kolm-partial"))


def test_a_model_is_fetched_checked_and_found_by_its_name_and_by_the_library(
    hub: FakeHub, cache: Path, tiny: bytes
) -> None:
    path = pulled()
    assert path.read_bytes() == tiny
    assert str(path) == try_to_load_from_cache(hub.repo, FILE, cache_dir=cache)
    assert model_path(NAME) == model_path(f"{NAME}:q8_0") == model_path(f"{NAME}:{FILE}") == path
    assert name_of(path) == "tiny-Q8_0"
    (weights,) = base_manifest(path).weights
    assert weights.digest == f"sha256:{hashlib.sha256(tiny).hexdigest()}"
    assert hub.fetched == [(FILE, None)]
    pulled()
    assert hub.fetched == [(FILE, None)]


def test_a_file_beyond_the_library_s_limit_is_fetched(
    hub: FakeHub, tiny: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", len(tiny) - 1)
    assert pulled().read_bytes() == tiny


def test_a_model_in_parts_is_fetched_whole_and_named_by_its_quantisation(hub: FakeHub, tmp_path: Path) -> None:
    first = make_tiny_gguf(tmp_path / "split-Q4_1.gguf", part_tensors=5)
    hub.commit({part.name: part.read_bytes() for part in tmp_path.glob("split-*.gguf")})
    path = pulled()
    assert sorted(name for name, _ in hub.fetched) == sorted(part.name for part in tmp_path.glob("split-*.gguf"))
    assert model_path(NAME) == model_path(f"{NAME}:q4_1") == model_path(f"{NAME}:{first.name}") == path
    assert base_cid(path) == base_cid(first)
    assert name_of(path) == "split-Q4_1"
    (path.parent / "split-Q4_1-00002-of-00003.gguf").resolve().unlink()
    assert pulled() == path
    assert hub.fetched[-1][0] == "split-Q4_1-00002-of-00003.gguf"


@pytest.mark.parametrize("names", [(f"mtp-{FILE}",), tuple(f"mtp-tiny-BF16-0000{n}-of-00002.gguf" for n in (1, 2))])
def test_a_model_comes_with_the_sidecar_of_its_block(names: tuple[str, ...], hub: FakeHub, tiny: bytes) -> None:
    hub.commit({FILE: tiny, "mtp-other-Q8_0.gguf": b"GGUF"} | {name: name.encode() for name in names})
    path = pulled(f"{NAME}:q8_0")
    assert [name for name, _ in hub.fetched] == [FILE, *names]
    assert [path.with_name(name).read_bytes() for name in names] == [name.encode() for name in names]


def test_a_connection_that_is_cut_goes_on_where_it_was(hub: FakeHub, tiny: bytes) -> None:
    hub.cuts = [1000, 0, 2000]
    assert pulled().read_bytes() == tiny
    assert [part for _, part in hub.fetched] == [None, "bytes=1000-", "bytes=1000-", "bytes=3000-"]


def test_bytes_with_another_digest_are_refused_and_removed(hub: FakeHub, cache: Path, tiny: bytes) -> None:
    hub.served = {FILE: tiny[:-1] + bytes([tiny[-1] ^ 1])}
    assert kolm("models", "pull", NAME)[0] == 3
    assert not [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size > 1000]
    hub.served = {}
    assert pulled().read_bytes() == tiny


def test_a_partial_file_of_wrong_bytes_does_not_last(hub: FakeHub, cache: Path, tiny: bytes) -> None:
    hub.cuts = [5000] + [0] * 20
    kolm("models", "pull", NAME)
    (kept,) = partial(cache)
    kept.write_bytes(b"x" * 5000)
    hub.cuts = []
    assert kolm("models", "pull", NAME)[0] == 3
    assert pulled().read_bytes() == tiny


@pytest.mark.parametrize(("left", "fetched"), [("whole", 0), ("damaged", 1), ("removed", 1)])
def test_a_file_that_another_process_fetched_meanwhile_is_checked(
    left: str, fetched: int, hub: FakeHub, cache: Path, tiny: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = cache / "models--maker--model-GGUF" / "blobs" / hashlib.sha256(tiny).hexdigest()
    waiting = [blob.with_name(f"{blob.name}.kolm-partial")]

    def waited(file: Any, operation: int) -> None:
        while waiting:
            waiting.pop().rename(blob)
            blob.write_bytes(tiny if left == "whole" else tiny[:-1])
            if left == "removed":
                blob.unlink()

    monkeypatch.setattr(naming_hub.fcntl, "flock", waited)
    assert pulled().read_bytes() == tiny
    assert (len(hub.fetched), partial(cache)) == (fetched, [])


def test_another_process_may_make_the_link_first(
    hub: FakeHub, cache: Path, tiny: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = cache / "models--maker--model-GGUF" / "snapshots" / hub.main / FILE

    def raced(self: Path, place: str) -> None:
        honest(link, place)
        honest(self, place)

    honest = Path.symlink_to
    monkeypatch.setattr(Path, "symlink_to", raced)
    assert pulled() == link
    assert ([link], link.read_bytes()) == (list(link.parent.iterdir()), tiny)


def test_a_file_that_was_damaged_later_is_not_loaded_and_pulled_again(hub: FakeHub, tiny: bytes) -> None:
    path = pulled()
    blob = path.resolve()
    blob.write_bytes(tiny[:-1] + bytes([tiny[-1] ^ 1]))
    with pytest.raises(WeightsInvalid):
        base_cid(path)
    assert pulled().read_bytes() == tiny


@pytest.mark.parametrize("ending", ["gguf", "safetensors"])
def test_a_model_without_one_of_its_parts_is_refused_by_the_part_s_name(ending: str, hub: FakeHub, tiny: bytes) -> None:
    parts = [f"model-0000{number}-of-00003.{ending}" for number in (1, 2, 3)]
    hub.commit(dict.fromkeys(("config.json", "tokenizer.json", parts[0], parts[2]), tiny))
    done = kolm("models", "pull", NAME)
    assert (done.code, parts[1] in done.err, hub.fetched) == (2, True, [])


def test_a_revision_that_moves_changes_nothing_until_it_is_pulled(hub: FakeHub, tmp_path: Path, tiny: bytes) -> None:
    before, first = pulled(), hub.main
    other = make_tiny_gguf(tmp_path / "other.gguf", seed=9).read_bytes()
    hub.commit({FILE: other})
    assert model_path(NAME) == before
    assert pulled().read_bytes() == other
    assert model_path(NAME).read_bytes() == other
    assert model_path(f"{NAME}@{first}").read_bytes() == tiny
    assert base_cid(model_path(NAME)) != base_cid(before)


def test_a_commit_that_is_gone_while_it_is_fetched_is_an_error(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = hub.answer

    def moved(path: str, token: str | None) -> tuple[int, dict[str, str], bytes]:
        found = answer(path, token)
        hub.commits.clear()
        return found

    monkeypatch.setattr(hub, "answer", moved)
    assert kolm("models", "pull", NAME)[0] == 4


@pytest.mark.parametrize(("what", "code"), [("token", 4), ("gated", 1), ("repository", 4), ("revision", 4)])
def test_what_the_hub_does_not_give_is_refused_by_its_kind(hub: FakeHub, what: str, code: int, cache: Path) -> None:
    name = NAME
    match what:
        case "token":
            hub.token = "hf_right"
        case "gated":
            hub.gated = True
        case "repository":
            name = "hf:maker/other"
        case "revision":
            name = f"{NAME}@nowhere"
    assert kolm("models", "pull", name)[0] == code
    assert not cache.exists()


def test_a_token_opens_what_is_private(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "hf_right"
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert pulled().is_file()


def test_offline_a_model_that_is_here_is_served_and_none_is_asked_for(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled()
    hub.asked = []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert model_path(NAME).is_file()
    assert kolm("models", "pull", NAME)[0] == 5
    assert hub.asked == []


def test_a_folder_of_safetensors_is_fetched_whole(hub: FakeHub, tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source", layers=1)
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    hub.commit({**files, "training_args.bin": b"pickle", "README.md": b"#"})
    path = pulled()
    assert {each.name for each in path.iterdir()} == set(files)
    assert model_path(NAME) == path
    assert base_cid(path) == base_cid(source)
    assert name_of(path) == "model-GGUF"
    (path / "model.safetensors").unlink()
    assert kolm("doctor", "--model", NAME)[0] == 2


def test_up_fetches_what_is_not_here_and_asks_for_nothing_that_is(hub: FakeHub, ran: list[LocalServices]) -> None:
    assert kolm("up", f"{NAME}:Q8_0", *FREE)[0] == 0
    assert ran[0].model == model_path(NAME)
    hub.asked = []
    assert kolm("up", "--model", NAME, *FREE)[0] == 0
    assert (ran[1].model, hub.asked) == (ran[0].model, [])
    assert kolm("up", NAME, "--model", "smollm2", *FREE)[0] == 2


@pytest.mark.usefixtures("ran")
@pytest.mark.parametrize("line", documented.BY_NAME)
def test_the_lines_of_the_page_work(line: str, hub: FakeHub, tmp_path: Path, tiny: bytes) -> None:
    if "ollama:" in line:
        ollama_model(tmp_path, "registry.ollama.ai/library/mistral/latest", tiny)
    else:
        hub.repo = "HuggingFaceTB/SmolLM2-360M-Instruct" if "SmolLM2" in line else "Qwen/Qwen3-4B-GGUF"
        hub.commit({"Qwen3-4B-Q4_K_M.gguf": tiny})
    done = kolm(*line.split()[1:])
    assert done.code == 0, done.err


def test_the_list_shows_what_is_here(hub: FakeHub, tiny: bytes) -> None:
    path = pulled()
    (path.parent / "store").mkdir()
    (path.parent / "store" / "manifest.json").touch()
    listed: list[dict[str, Any]] = kolm("models", "list", "--json").document
    (found,) = (each for each in listed if each["name"] == f"{NAME}:Q8_0")
    assert (found["from"], found["size"], found["family"]) == ("hub", len(tiny), "llama")
    assert {each["path"] for each in listed if each["name"] == "qwen3:4b"} == {None}
    assert f"{NAME}:Q8_0" in kolm("models", "list")[1]
