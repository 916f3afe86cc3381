"""Draft heads of a hub on this machine: fetched, converted, named with their origin; hostile and foreign ones."""

import hashlib
import io
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from ledger.documents.manifests import DraftHeadManifest
from services.cli.up.local_services import LocalServices
from services.client.head_folder import manifest_of
from services.generation.drafting.methods import load_head
from services.generation.target.config.config import read_config
from services.generation.target.identity import base_cid
from tests import documented
from tests.cli import kolm
from tests.fakes.heads import block_config, head_config, published_block, write_safeailab
from tests.fakes.hub import FakeHub, serving_the_library
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.auditor.deployment import Deployment
from tests.integration.cli.test_heads import against
from tests.vectors.make_assistant import FOLDER

NAME = "hf:maker/head-EAGLE3"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PARTS = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
Spoil = Callable[[FakeHub, dict[str, bytes], Path], object]


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
    with serving_the_library(FakeHub(repo=NAME.removeprefix("hf:")), tmp_path, monkeypatch) as hub:
        hub.commit(files | {"README.md": b"# a head"})
        yield hub


def kept(tmp_path: Path) -> list[Path]:
    """Heads that were converted, and anything half written beside them."""
    return sorted((tmp_path / "xdg" / "kolm" / "heads").glob("*"))


def assert_same_weights(one: Path, other: Path, *, base: Path) -> None:
    found, expected = (load_head(folder, read_config(base)).tensors for folder in (one, other))  # type: ignore[attr-defined]
    assert found.keys() == expected.keys()
    assert all((found[name] == expected[name]).all() for name in found)


def pickled(files: dict[str, bytes], value: Callable[[dict[str, torch.Tensor]], Any], folder: Path) -> dict[str, bytes]:
    """The same head with a pickle in place of safetensors."""
    folder.mkdir(exist_ok=True)
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
    assert_same_weights(*kept(tmp_path), base=base)


class Command:
    """An object whose unpickling runs a command."""

    def __init__(self, words: str) -> None:
        self.words = words

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.words,)


def in_parts(files: dict[str, bytes], scratch: Path) -> dict[str, bytes]:
    """The same head in two files and their index, as save_pretrained splits weights."""
    (scratch / "whole").write_bytes(files["model.safetensors"])
    tensors, found, index = load_file(scratch / "whole"), {"config.json": files["config.json"]}, dict[str, str]()
    for number in (0, 1):
        names = sorted(tensors)[number::2]
        save_file({name: tensors[name] for name in names}, scratch / "part")
        found[PARTS[number]] = (scratch / "part").read_bytes()
        index |= dict.fromkeys(names, PARTS[number])
    return found | {INDEX: json.dumps({"metadata": {"total_size": 1}, "weight_map": index}).encode()}


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def answering(status: int, place: str) -> Spoil:
    """The hub answers questions about a place with a status."""

    def spoil(hub: FakeHub, files: dict[str, bytes], scratch: Path) -> None:
        answer = hub.answer

        def answers(path: str, token: str | None) -> tuple[int, dict[str, str], bytes]:
            headers = {"X-Error-Code": "EntryNotFound"} if status == 404 else {}
            return (status, headers, b"{}") if place in path else answer(path, token)

        hub.answer = answers  # type: ignore[method-assign]

    return spoil


def serving_other(file: str, change: Callable[[bytes], bytes]) -> Spoil:
    """The hub serves other bytes than it announces."""
    return lambda hub, files, scratch: hub.served.update({file: change(files[file])})


def having(change: Callable[[dict[str, bytes], Path], dict[str, bytes]]) -> Spoil:
    """The repository has other files."""
    return lambda hub, files, scratch: hub.commit(change(files, scratch)) and None


def of_parts(change: Callable[[dict[str, bytes]], dict[str, bytes]], *, leave_out: str = "") -> Spoil:
    def spoil(hub: FakeHub, files: dict[str, bytes], scratch: Path) -> None:
        found = in_parts(files, scratch)
        hub.commit({name: content for name, content in (found | change(found)).items() if name != leave_out})

    return spoil


def without(name: str) -> Spoil:
    return having(lambda files, scratch: {each: files[each] for each in files if each != name})


def with_members(**members: Any) -> Spoil:
    """Another config.json."""
    return having(lambda f, _: f | {"config.json": json.dumps(json.loads(f["config.json"]) | members).encode()})


def indexed(weight_map: Any) -> Spoil:
    return of_parts(lambda found: {INDEX: json.dumps({"weight_map": weight_map}).encode()})


def mapped_elsewhere(found: dict[str, bytes]) -> dict[str, bytes]:
    """An index that names a tensor in the other part."""
    mapped = json.loads(found[INDEX])["weight_map"]
    first = min(mapped)
    return {INDEX: json.dumps({"weight_map": mapped | {first: PARTS[mapped[first] == PARTS[0]]}}).encode()}


def announcing(change: Callable[[dict[str, Any]], object]) -> Spoil:
    """The hub describes the repository otherwise: `change` returns the description, or changes the one that it has."""

    def spoil(hub: FakeHub, files: dict[str, bytes], scratch: Path) -> None:
        answer = hub.answer

        def answers(path: str, token: str | None) -> tuple[int, dict[str, str], bytes]:
            status, headers, body = answer(path, token)
            if "/api/" not in path:
                return status, headers, body
            described = json.loads(body)
            changed = change(described)
            return status, headers, json.dumps(described if changed is None else changed).encode()

        hub.answer = answers  # type: ignore[method-assign]

    return spoil


def each_file(**members: Any) -> Spoil:
    """The hub announces these members of every file."""
    return announcing(lambda described: [file.update(members) for file in described["siblings"]] and None)


def _run(folder: Path) -> Path:
    """The trace of a command that a hostile pickle has run."""
    return folder / "ran"


FAULTS: dict[str, tuple[Spoil, int, str]] = {
    "the connection is cut": (lambda hub, files, scratch: hub.cuts.extend([10_000_000, 1000, *[0] * 40]), 5, WEIGHTS),
    "weights of another digest": (serving_other(WEIGHTS, flipped), 3, WEIGHTS),
    "a configuration of another digest": (serving_other("config.json", flipped), 3, "config.json"),
    "weights that end early": (serving_other(WEIGHTS, lambda content: content[:-9]), 5, WEIGHTS),
    "no token for a private repository": (lambda hub, files, scratch: setattr(hub, "token", "hf_right"), 4, "HF_TOKEN"),
    "a gated repository": (lambda hub, files, scratch: setattr(hub, "gated", True), 1, "HF_TOKEN"),
    "no such repository": (lambda hub, files, scratch: setattr(hub, "repo", "maker/other"), 4, "HF_TOKEN"),
    "no such revision": (lambda hub, files, scratch: hub.commits.clear(), 4, "revision"),
    "401 for a file": (answering(401, "/resolve/"), 1, "config.json"),
    "403 for a file": (answering(403, "/resolve/"), 1, "config.json"),
    "404 for a file": (answering(404, "/resolve/"), 4, "config.json"),
    "500 for a file": (answering(500, "/resolve/"), 5, "config.json"),
    "500": (answering(500, "/api/"), 5, "500"),
    "a repository that is a list": (announcing(lambda described: [described]), 1, "description"),
    "files that are a number": (announcing(lambda described: described.update(siblings=7)), 1, "description"),
    "a file without a name": (announcing(lambda described: described["siblings"][0].pop("rfilename") and None), 1,
                              "description"),
    "a commit that is a path": (announcing(lambda described: described.update(sha="../../scratch/kept")), 1, "sha"),
    "a digest that is a path": (each_file(blobId="../../../scratch/kept", lfs=None), 1, "digest"),
    "a digest of git LFS that is a path": (
        each_file(lfs={"sha256": "../../../scratch/kept", "size": 9, "pointerSize": 130}), 1, "digest",
    ),
    "no digest": (each_file(blobId=None, lfs=None), 1, "digest"),
    "a size below 0": (each_file(size=-1), 1, "size"),
    "a head of another base": (with_members(vocab_size=500), 2, "vocab_size"),
    "a configuration that contradicts the weights": (with_members(intermediate_size=40), 2, "midlayer.mlp"),
    "a configuration of no head": (with_members(architectures=["GPT2LMHeadModel"]), 2, "GPT2LMHeadModel"),
    "a configuration that is no object": (having(lambda f, _: f | {"config.json": b"[]"}), 2, "config.json"),
    "no configuration": (without("config.json"), 2, "config.json"),
    "no weights": (without(WEIGHTS), 2, "safetensors"),
    "weights that are no safetensors": (having(lambda f, _: f | {WEIGHTS: b"GGUF" + bytes(99)}), 2, WEIGHTS),
    "weights with a tensor less": (having(lambda f, scratch: f | {WEIGHTS: fewer(f, scratch)}), 2, "fc.weight"),
    "a part is missing": (of_parts(lambda found: {}, leave_out=PARTS[1]), 2, PARTS[1]),
    "a part is doubled": (of_parts(lambda found: {PARTS[1]: found[PARTS[0]]}), 2, PARTS[1]),
    "a foreign part": (of_parts(mapped_elsewhere), 2, INDEX),
    "two sets of weights": (of_parts(lambda found: {WEIGHTS: found[PARTS[0]]}), 2, WEIGHTS),
    "an index that is none": (indexed(None), 2, INDEX),
    "an index that leads out of the folder": (indexed({"fc.weight": "../../x"}), 2, INDEX),
    "several files without an index": (of_parts(lambda found: {}, leave_out=INDEX), 2, INDEX),
    "a pickle that runs a command": (
        having(lambda f, scratch: pickled(f, lambda _: {"fc.weight": Command(f"touch {_run(scratch)}")}, scratch)),
        2, "pytorch_model.bin",
    ),
    "a pickle of other objects": (
        having(lambda f, scratch: pickled(f, lambda tensors: [*tensors.values()], scratch)), 2, "pytorch_model.bin",
    ),
    "a pickle that is cut": (
        having(lambda f, scratch: {n: c[: len(c) // 2 or None] if n != "config.json" else c for n, c in
                                   pickled(f, OrderedDict, scratch).items()}), 2, "pytorch_model.bin",
    ),
}  # fmt: skip
"""Faults of a hub's head, the exit code of a command that takes it, and a name in its message."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_head_that_cannot_be_taken_is_refused_by_name_and_nothing_of_it_is_kept(
    fault: str, hub: FakeHub, base: Path, files: dict[str, bytes], tmp_path: Path
) -> None:
    scratch, pull = tmp_path / "scratch", ("heads", "pull", NAME, "--model", str(base))
    scratch.mkdir()
    (scratch / "kept").touch()  # no hub removes files
    spoil, code, named = FAULTS[fault]
    spoil(hub, files, scratch)
    done = kolm(*pull)
    assert done.code == code, done.err
    assert NAME in done.err
    assert named in done.err
    assert (kept(tmp_path), _run(scratch).exists()) == ([], False)
    assert (scratch / "kept").exists()
    assert all(digest(blob) == blob.name for blob in blobs(tmp_path, whole=True))
    for partial in blobs(tmp_path, whole=False):  # a later command goes on with it
        assert any(content.startswith(partial.read_bytes()) for content in files.values())
    hub.__dict__.pop("answer", None)
    hub.cuts, hub.served, hub.token, hub.gated, hub.repo = [], {}, None, False, NAME.removeprefix("hf:")
    hub.commit(files)
    assert kolm(*pull).code == 0
    assert len(kept(tmp_path)) == 1


def test_files_of_a_model_without_a_size_or_a_name_are_refused(hub: FakeHub) -> None:
    hub.commit({"tiny-Q8_0.gguf": bytes(9), "tiny-Q4_0\0.gguf": bytes(9)})
    each_file(size="9")(hub, {}, Path())
    done = kolm("models", "pull", NAME)
    assert (done.code, "tiny-Q8_0.gguf: size" in done.err) == (1, True)
    each_file(size=9)(hub, {}, Path())
    assert kolm("models", "pull", f"{NAME}:Q4_0").code == 2


@pytest.mark.parametrize("fault", ["the connection is cut", "a head of another base", "a part is missing"])
def test_nothing_is_started_without_the_head_that_was_named(
    fault: str, hub: FakeHub, base: Path, files: dict[str, bytes], tmp_path: Path, ran: list[LocalServices]
) -> None:
    spoil, code, _ = FAULTS[fault]
    spoil(hub, files, tmp_path)
    assert (kolm("up", "--model", str(base), "--head", NAME).code, ran) == (code, [])


def fewer(files: dict[str, bytes], scratch: Path) -> bytes:
    """The weights without fc.weight."""
    (scratch / "whole").write_bytes(files[WEIGHTS])
    save_file({n: t for n, t in load_file(scratch / "whole").items() if n != "fc.weight"}, scratch / "fewer")
    return (scratch / "fewer").read_bytes()


def blobs(tmp_path: Path, *, whole: bool) -> list[Path]:
    """Fetched files in the hub's cache, or parts of files that a later command goes on with."""
    found = (tmp_path / "hub").glob("models--*/blobs/*")
    return [path for path in found if (path.suffix != ".kolm-partial") == whole]


def digest(blob: Path) -> str:
    content = blob.read_bytes()
    if len(blob.name) == 64:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def test_a_head_in_parts_is_the_same_head(hub: FakeHub, base: Path, files: dict[str, bytes], tmp_path: Path) -> None:
    kolm("heads", "pull", NAME, "--model", str(base))
    hub.commit(in_parts(files, tmp_path))
    done = kolm("heads", "pull", NAME, "--model", str(base), "--json")
    assert done.code == 0, done.err
    assert_same_weights(*kept(tmp_path), base=base)
    origin = manifest(Path(done.document["folder"]), base).annotations
    assert {f"origin.{name}" for name in ("config.json", INDEX, *PARTS)} <= origin.keys()


def test_a_download_that_was_cut_goes_on_where_it_was(hub: FakeHub, base: Path) -> None:
    hub.cuts = [10_000_000, 1000, *[0] * 20]
    assert kolm("heads", "pull", NAME, "--model", str(base)).code == 5
    hub.cuts = []
    assert kolm("heads", "pull", NAME, "--model", str(base)).code == 0
    assert hub.fetched[-1] == (WEIGHTS, "bytes=1000-")


def test_a_head_is_published_in_the_own_registry_with_its_origin(
    hub: FakeHub, base: Path, deployment: Deployment, registry: str, tmp_path: Path
) -> None:
    run = against(deployment, registry, tmp_path, base)
    code, pushed, err = run("heads", "push", NAME, "--name", "their-head")
    assert code == 0, err
    code, shown, err = run("heads", "list", pushed["head_cid"])
    assert code == 0, err
    assert shown["manifest"]["annotations"].items() >= {("origin.repository", hub.repo), ("origin.revision", hub.main)}


@pytest.mark.usefixtures("ran")
def test_a_token_opens_a_private_head_and_offline_a_head_that_is_here_is_served(
    hub: FakeHub, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_right"
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert kolm("heads", "pull", NAME, "--model", str(base)).code == 0
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.asked = []
    assert kolm("up", "--model", str(base), "--head", NAME).code == 0
    assert kolm("up", "--model", str(base), "--head", "hf:maker/other").code == 5
    assert hub.asked == []


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
    line: str, hub: FakeHub, base: Path, files: dict[str, bytes], tmp_path: Path, ran: list[LocalServices]
) -> None:
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
