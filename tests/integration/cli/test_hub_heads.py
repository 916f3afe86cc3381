"""Draft heads of a hub on this machine: fetched, converted, named with their origin; hostile and foreign ones."""

import hashlib
import io
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import constants, file_download
from safetensors.torch import load_file

from ledger.documents.manifests import DraftHeadManifest
from services.cli.up.local_services import LocalServices
from services.cli.up.up_options import ListenOptions
from services.client.head_folder import manifest_of
from services.generation.drafting.methods import load_head
from services.generation.target.config.config import read_config
from services.generation.target.identity import base_cid
from tests import documented
from tests.cli import kolm
from tests.fakes.heads import block_config, head_config, published_block, write_safeailab
from tests.fakes.hub import FakeHub, serving
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_model import make_tiny_model
from tests.vectors.make_assistant import FOLDER

NAME = "hf:maker/head-EAGLE3"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture
def files(base: Path, tmp_path: Path) -> dict[str, bytes]:
    """The files of a published head: config.json and model.safetensors in SafeAILab's layout, layers explicit."""
    folder = tmp_path / "published"
    write_safeailab(folder, head_config(read_config(base)), eagle_aux_hidden_state_layer_ids=[0, 1, 1])
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def hub(tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(file_download, "time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 500)
    with serving(FakeHub(repo=NAME.removeprefix("hf:"))) as hub:
        hub.commit(files | {"README.md": b"# a head"})
        place = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", place)
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        yield hub


def kept(tmp_path: Path) -> list[Path]:
    """Heads that were converted, and anything half written beside them."""
    return sorted((tmp_path / "xdg" / "kolm" / "heads").glob("*"))


def pickled(files: dict[str, bytes], value: Callable[[dict[str, torch.Tensor]], Any], folder: Path) -> dict[str, bytes]:
    """The same head with a pickle in place of safetensors."""
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(files["model.safetensors"])
    buffer = io.BytesIO()
    torch.save(value(load_file(folder / "model.safetensors")), buffer)
    return {"config.json": files["config.json"], "pytorch_model.bin": buffer.getvalue()}


def manifest(folder: Path, base: Path) -> DraftHeadManifest:
    return manifest_of(folder, base_cid(base))


def test_a_head_is_fetched_converted_and_named_with_its_origin(
    hub: FakeHub, base: Path, files: dict[str, bytes], tmp_path: Path
) -> None:
    done = kolm("heads", "pull", NAME, "--model", str(base), "--json")
    assert done.code == 0, done.err
    (folder,) = kept(tmp_path)
    assert done.document == {"folder": str(folder), "head_cid": manifest(folder, base).cid}
    assert manifest(folder, base).annotations == {
        "origin.repository": hub.repo,
        "origin.revision": hub.main,
        **{f"origin.{name}": "sha256:" + hashlib.sha256(files[name]).hexdigest() for name in files},
    }
    assert load_head(folder, read_config(base)).config.feature_layers == (1, 2, 2)
    assert [name for name, _ in hub.fetched] == ["config.json", "model.safetensors"]


def test_a_pickle_becomes_the_same_head(hub: FakeHub, base: Path, files: dict[str, bytes], tmp_path: Path) -> None:
    kolm("heads", "pull", NAME, "--model", str(base))
    hub.commit(pickled(files, OrderedDict, tmp_path / "pickle"))
    assert kolm("heads", "pull", NAME, "--model", str(base)).code == 0
    one, other = (load_head(folder, read_config(base)) for folder in kept(tmp_path))
    for name, values in one.tensors.items():  # type: ignore[attr-defined]
        assert (values == other.tensors[name]).all()  # type: ignore[attr-defined]


class Command:
    """An object whose unpickling runs a command."""

    def __init__(self, words: str) -> None:
        self.words = words

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.words,)


def test_a_pickle_that_runs_a_command_is_refused_and_not_run(
    hub: FakeHub, base: Path, files: dict[str, bytes], tmp_path: Path
) -> None:
    trace = tmp_path / "ran"
    hub.commit(pickled(files, lambda tensors: {"fc.weight": Command(f"touch {trace}")}, tmp_path / "pickle"))
    assert kolm("heads", "pull", NAME, "--model", str(base)).code == 2
    assert not trace.exists()
    assert kept(tmp_path) == []


def test_a_head_of_another_base_is_refused_and_not_kept(hub: FakeHub, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", hidden_size=32)
    assert kolm("heads", "pull", NAME, "--model", str(other)).code == 2
    assert kept(tmp_path) == []


def test_a_file_that_cannot_be_read_is_named_as_the_hub_names_it(
    hub: FakeHub, base: Path, files: dict[str, bytes], tmp_path: Path
) -> None:
    hub.commit(files | {"config.json": b"[]"})
    done = kolm("heads", "pull", NAME, "--model", str(base))
    assert done.code == 2
    assert f"{NAME}: config.json" in done.err
    assert kept(tmp_path) == []


def test_a_cut_download_keeps_no_head_and_goes_on(hub: FakeHub, base: Path, tmp_path: Path) -> None:
    hub.cuts = [10_000_000, 1000, *[0] * 20]
    assert kolm("heads", "pull", NAME, "--model", str(base)).code == 5
    assert kept(tmp_path) == []
    hub.cuts = []
    assert kolm("heads", "pull", NAME, "--model", str(base)).code == 0
    assert hub.fetched[-1] == ("model.safetensors", "bytes=1000-")


def test_a_wrong_digest_keeps_no_head(hub: FakeHub, base: Path, files: dict[str, bytes], tmp_path: Path) -> None:
    weights = files["model.safetensors"]
    hub.served = {"model.safetensors": weights[:-1] + bytes([weights[-1] ^ 1])}
    assert kolm("heads", "pull", NAME, "--model", str(base)).code == 3
    assert kept(tmp_path) == []


@pytest.mark.parametrize(("fault", "code"), [("token", 4), ("gated", 1), ("missing", 4), ("revision", 4)])
def test_a_hub_that_refuses_is_reported_by_kind(hub: FakeHub, base: Path, fault: str, code: int) -> None:
    name = {"missing": "hf:maker/other", "revision": f"{NAME}@nowhere"}.get(fault, NAME)
    hub.token, hub.gated = ("hf_right" if fault == "token" else None), fault == "gated"
    assert kolm("heads", "pull", name, "--model", str(base)).code == code


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_repository_without_a_head_is_refused(
    hub: FakeHub, base: Path, files: dict[str, bytes], missing: str
) -> None:
    hub.commit({name: data for name, data in files.items() if name != missing})
    assert kolm("heads", "pull", NAME, "--model", str(base)).code == 2
    assert hub.fetched == []


def test_a_block_head_is_fetched_likewise(hub: FakeHub, base: Path, tmp_path: Path) -> None:
    folder = published_block(tmp_path / "block", block_config(read_config(base)), "dspark")
    hub.commit({path.name: path.read_bytes() for path in folder.iterdir()})
    done = kolm("heads", "pull", NAME, "--model", str(base), "--json")
    assert done.code == 0, done.err
    assert load_head(Path(done.document["folder"]), read_config(base)).kind == "block"


def test_an_assistant_is_fetched_likewise(hub: FakeHub, tmp_path: Path) -> None:
    base = FOLDER / "own_keys"
    hub.commit({path.name: path.read_bytes() for path in (base / "assistant").iterdir()})
    done = kolm("heads", "pull", NAME, "--model", str(base), "--json")
    assert done.code == 0, done.err
    assert load_head(Path(done.document["folder"]), read_config(base)).kind == "mtp"
    assert manifest(Path(done.document["folder"]), base).annotations["origin.repository"] == "maker/head-EAGLE3"


def test_flags_of_published_heads_are_refused_for_a_hubs(hub: FakeHub, base: Path) -> None:
    assert kolm("heads", "pull", NAME).code == 2
    assert kolm("heads", "pull", NAME, "--model", str(base), "--check").code == 2
    assert kolm("heads", "pull", "name", "--model", str(base)).code == 2
    assert hub.asked == []


@pytest.mark.parametrize("line", documented.HEADS_BY_NAME)
def test_the_lines_of_the_page_serve_the_head(
    line: str, hub: FakeHub, base: Path, files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[LocalServices] = []
    monkeypatch.setattr("services.cli.up.up._run", lambda services, *others, as_json: ran.append(services))
    monkeypatch.setattr(ListenOptions, "check_ports", lambda *_: None)
    if "--head auto" in line:
        gguf = make_tiny_gguf(tmp_path / "base-Q4_K_M.gguf", storage="q8_0", hidden=64)
        write_safeailab(
            tmp_path / "for-gguf", head_config(read_config(gguf)), eagle_aux_hidden_state_layer_ids=[0, 0, 0]
        )
        files = {path.name: path.read_bytes() for path in (tmp_path / "for-gguf").iterdir()}
        hub.others["Qwen/Qwen3-8B-GGUF"] = other = FakeHub(repo="Qwen/Qwen3-8B-GGUF")
        other.commit({gguf.name: gguf.read_bytes()})
    hub.repo = "RedHatAI/Qwen3-8B-speculator.eagle3" if "--head auto" in line else line.rpartition("hf:")[2]
    hub.commit(files)
    done = kolm(*line.replace("BASE", str(base)).split()[1:])
    assert done.code == 0, done.err
    assert [str(folder) for folder in kept(tmp_path)] == ran[0].generation_settings["head"]
