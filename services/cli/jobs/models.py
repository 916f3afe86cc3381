"""What a model is, and how a new one gets a name that `--model` takes."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from services.cli.failures.exits import UsageError
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.blocks import BLOCK
from services.generation.target.config.config import block_bytes, bounded, read_config
from services.generation.target.cpu import ARITHMETIC
from services.generation.target.errors import TargetError, about
from services.generation.target.files.gguf_file import is_gguf
from services.generation.target.files.safetensors import weight_files
from services.generation.target.identity import base_cid, tokenizer_cid
from services.generation.target.model_path import models_folder, named_models, packaged
from services.generation.target.weights import checked_weights

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CACHED_BYTES = 4  # of a key or value in float32


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model. Sizes in bytes; `cache_bytes` are keys and values of one sequence of `context_length` tokens.

    `storages` count the weights, by how they are stored.
    """

    path: Path
    family: str
    base_cid: str
    tokenizer_cid: str
    arithmetic: str
    layers: int
    hidden_size: int
    vocab_size: int
    model_context_length: int
    storages: dict[str, int]
    weight_bytes: int
    context_length: int
    cache_bytes: int

    @property
    def parameters(self) -> int:
        return sum(self.storages.values())


def describe(path: Path, context_length: int | None = None) -> ModelDescription:
    """Reads the configuration and the table of weights, and hashes what was not hashed before.

    Raises UsageError for what is no model, or a context that it does not have.
    """
    try:
        whole = read_config(path)
        config = bounded(whole, context_length)
        weights = checked_weights(path, config)
        storages: Counter[str] = Counter()
        for name in weights.names():
            count = 1
            for extent in weights.shape(name):
                count *= extent
            storages[weights.storage(name)] += count
        files = [path] if is_gguf(path) else weight_files(path)
        return ModelDescription(
            path=path,
            family=config.architecture,
            base_cid=base_cid(path),
            tokenizer_cid=tokenizer_cid(path),
            arithmetic=ARITHMETIC,
            layers=config.layers,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            model_context_length=whole.context_length,
            storages=dict(storages.most_common()),
            weight_bytes=sum(file.stat().st_size for file in files),
            context_length=config.context_length,
            cache_bytes=block_bytes(config, _CACHED_BYTES) * config.context_length // BLOCK,
        )
    except TargetError as error:
        raise UsageError(about(path, error)) from error


def import_model(source: Path, name: str) -> Path:
    """Copy a model that can be served into the folder of models; it has no name there before all of it is copied.

    Raises UsageError for a name that is none or taken, and for what is no model.
    """
    if _NAME.fullmatch(name) is None or name in packaged():
        raise UsageError(f"--name: {name!r} cannot be a model's; expected letters, digits, . _ - and no package")
    folder = models_folder()
    target = folder / (f"{name}.gguf" if is_gguf(source) else name)
    if any(each.name == name for each in named_models()):
        raise UsageError(f"--name: there is a model {name} in {folder} already", "choose another name, or remove it")
    describe(source)
    try:
        Tokenizer(source)
    except TargetError as error:
        raise UsageError(about(source, error)) from error
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{name}.part"
    shutil.rmtree(draft, ignore_errors=True)
    draft.unlink(missing_ok=True)
    if source.is_dir():
        shutil.copytree(source, draft)
    else:
        shutil.copyfile(source, draft)
    return draft.rename(target)
