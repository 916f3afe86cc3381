"""Conversion of draft heads in other layouts, from a folder or a hub (`hf:OWNER/REPOSITORY`), to kolm's layout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.durable_file import write_durably
from services.cli.frame.exits import UsageError
from services.cli.frame.output import remark, stderr_console
from services.cli.frame.pull import PulledHead, pull_head
from services.client.head_folder import CONFIG_FILE, ORIGIN_FILE, WEIGHTS_FILE
from services.generation.target.errors import ModelNotFound, TargetError
from services.generation.target.model_path import name_of
from services.generation.target.naming.hub_names import HubName

if TYPE_CHECKING:
    from services.generation.drafting.block.block_checkpoint import BlockHead
    from services.generation.drafting.eagle3.checkpoint import Head as LoadedHead
    from services.generation.target.naming.known_heads import KnownHead

_PROBE_TOKENS = 512
_PROBE = """The server writes a receipt for every request. A reader who doubts one looks it up and checks the signature.

def total(prices, discount):
    \"\"\"The sum of all prices after the discount.\"\"\"
    return sum(prices) * (1 - discount)
"""

_DIGITS = 12  # of a commit and of the base's identifier, in the name of a folder


def hub_head(
    option: str, named: str, model: Path, feature_layers: tuple[int, ...] | None = None, *, ask_hub: bool = False
) -> Path:
    """The folder of a hub's head in kolm's layout, for the base in `model`.

    The hub is asked if the head was not fetched before, or with `ask_hub`. `option` is named in messages;
    `feature_layers` are the layers that the head reads, if its own configuration is wrong. Raises CommandError.
    """
    from services.generation.target.identity import base_cid
    from services.generation.target.naming.folders import known_commit

    name = _hub_name(option, named)
    try:
        base = base_cid(model)
    except (TargetError, OSError) as error:
        raise UsageError(f"--model: {error}") from error
    kept = _place(name, known_commit(name), base, feature_layers)
    if not ask_hub and (kept / ORIGIN_FILE).is_file():
        return kept
    pulled = pull_head(name)
    kept = _place(name, pulled.commit, base, feature_layers)
    if not (kept / ORIGIN_FILE).is_file():
        _convert(name, pulled, kept, model, feature_layers)
    return kept


def heads_known_for(model: Path) -> list[KnownHead]:
    """Public heads of a base, found by its file names and the names in its metadata; the preferred one first."""
    from services.generation.target.adapters import base_names
    from services.generation.target.naming.known_heads import known_heads

    return known_heads(base_names(model))


def known_head(model: Path) -> KnownHead:
    """The preferred public head of a base. Raises UsageError if none is known."""
    if not (found := heads_known_for(model)):
        raise UsageError(
            f"--head: auto: no public head is known for {name_of(model)}",
            "name one with --head hf:OWNER/REPOSITORY, or train one with kolm heads train",
        )
    return found[0]


def _hub_name(option: str, named: str) -> HubName:
    try:
        name = HubName.of(named)
    except ModelNotFound as error:
        raise UsageError(f"{option}: {error}") from error
    if name is None:
        raise UsageError(f"{option}: {named} is no head of a hub", "expected hf:OWNER/REPOSITORY[@REVISION]")
    return name


def _place(name: HubName, commit: str, base_cid: str, feature_layers: tuple[int, ...] | None) -> Path:
    """The folder of a converted head, whose files depend on the commit, the base and the layers."""
    from services.generation.target.kernels.compilation import user_cache

    layers = "" if feature_layers is None else "-" + "-".join(map(str, feature_layers))
    base = base_cid.removeprefix("cidv1:sha256:")[:_DIGITS]
    return user_cache() / "heads" / f"{name.repo.replace('/', '--')}@{commit[:_DIGITS]}-{base}{layers}"


def _convert(name: HubName, pulled: PulledHead, kept: Path, model: Path, layers: tuple[int, ...] | None) -> None:
    from services.generation.target.identity import FileDigests

    digests = {path.name: FileDigests().digest(path) for path in (pulled.config, *pulled.weights)}
    with _folder_for(kept) as folder, tempfile.TemporaryDirectory() as scratch:
        source = _unpickled(name, pulled, Path(scratch) / "source")
        try:
            written = convert(source, folder, model, layers)
        except UsageError as error:  # its message names a temporary folder, which is gone when it is read
            raise UsageError(f"{name}: {error.message.replace(f'{source}/', '')}", error.hint) from error
        origin = {"repository": name.repo, "revision": pulled.commit} | digests
        write_durably(folder / ORIGIN_FILE, json.dumps(origin, indent=1).encode())
    read = ", ".join(map(str, written.feature_layers))
    remark(f"{name}: converted from {written.origin}'s layout to kolm's: it reads the features of layers {read}")


@contextmanager
def _folder_for(kept: Path) -> Iterator[Path]:
    """An empty folder that becomes `kept` if the block succeeds, and is removed if it does not."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".converting-", dir=kept.parent))
    try:
        yield folder
        shutil.rmtree(kept, ignore_errors=True)
        folder.replace(kept)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unpickled(name: HubName, pulled: PulledHead, source: Path) -> Path:
    """Write config.json and safetensors into `source`, and return it; a pickle is converted in a process of its own."""
    source.mkdir()
    shutil.copyfile(pulled.config, source / CONFIG_FILE)
    pickle = next((each for each in pulled.weights if each.suffix == ".bin"), None)
    if pickle is None:
        alone = len(pulled.weights) == 1  # whatever its name
        for each in pulled.weights:
            (source / (WEIGHTS_FILE if alone else each.name)).symlink_to(each.resolve())
        return source
    if find_spec("torch") is None:
        raise UsageError(
            f"{name}: {pickle.name} is a pickle, which is read with torch, and torch is not installed",
            "install torch (`pip install torch`), or take a head that is published as safetensors",
        )
    command = [sys.executable, "-m", "services.training.pickled_weights"]
    command += [str(pickle), str(source / WEIGHTS_FILE)]
    with tempfile.TemporaryDirectory() as empty:
        environment = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": empty}
        done = subprocess.run(command, capture_output=True, text=True, cwd=empty, env=environment, check=False)
    try:
        refused = json.loads(done.stdout).get("refused")
    except ValueError:
        lines = done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"]
        refused = f"cannot be converted: {lines[-1][:300]}"
    if refused:
        raise UsageError(f"{name}: {pickle.name} {refused}", "take a head that is published as safetensors")
    return source


@dataclass(frozen=True, slots=True)
class Converted:
    """A head that was written in kolm's layout: its former layout, and the layers that it reads."""

    origin: str
    feature_layers: tuple[int, ...]


def convert(source: Path, out: Path, model: Path, feature_layers: tuple[int, ...] | None) -> Converted:
    """Write a head in kolm's layout. Weights become float32, which holds every value of the other formats exactly.

    If the layout leaves open which layers the head reads, every reading is tried on the base; the layout's own is kept
    unless another one predicts the base's tokens clearly better. Raises UsageError.
    """
    import numpy as np

    from services.generation.drafting.block.block_checkpoint import BlockHead, write_block_head
    from services.generation.drafting.eagle3.checkpoint import Head, write_head
    from services.generation.drafting.eagle3.loading import with_layers
    from services.generation.drafting.heads import HeadError, check_base
    from services.generation.drafting.methods import load_head
    from services.generation.drafting.mtp.assistant import Assistant, write_assistant
    from services.generation.target.config.config import read_config
    from services.generation.target.files.safetensors import Part
    from services.runtime.process import reason

    def floats(head: LoadedHead | BlockHead) -> dict[str, Part]:
        return {name: Part.of(values) for name, values in head.tensors.items()}

    def offsets(head: LoadedHead | BlockHead) -> Part:
        return Part.of(head.target_ids - np.arange(len(head.target_ids)))

    try:
        base = read_config(model)
        head = load_head(source, base)
        if isinstance(head, BlockHead):
            if feature_layers is not None:
                raise UsageError(f"--feature-layers: {source} is a block head, which names them", "leave the flag out")
            own = {"d2t": offsets(head)} if len(head.target_ids) < head.config.vocab_size else {}
            write_block_head(out, head.config, floats(head) | own)
            return Converted(head.origin, head.config.feature_layers)
        if isinstance(head, Assistant):
            if feature_layers is not None:
                raise UsageError(f"--feature-layers: {source} reads the base's last layer", "leave the flag out")
            write_assistant(out, source, base)
            return Converted(head.origin, head.config.feature_layers)
        assert isinstance(head, Head)
        if feature_layers is not None:
            head = with_layers(head, feature_layers)
            check_base(head.config, base)
        elif head.other_layers:
            head = _confirmed(head, model)
        write_head(out, head.config, floats(head) | {"d2t": offsets(head)})
    except (HeadError, TargetError, OSError) as error:
        raise UsageError(reason(error)) from error
    return Converted(head.origin, tuple(head.config.feature_layers))


def _confirmed(head: LoadedHead, model: Path) -> LoadedHead:
    from services.generation.drafting.eagle3.loading import confirm_layers
    from services.generation.engine.text.tokenizer import Tokenizer
    from services.generation.target.cpu import load_target

    target = load_target(model, cache_tokens=_PROBE_TOKENS)
    with stderr_console().status("trying which layers of the base the head reads"):
        return confirm_layers(head, target, Tokenizer(model).encode(_PROBE)[: _PROBE_TOKENS // 4])
