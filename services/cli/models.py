"""`kolm models`: models by the names that `--model` takes."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from services.cli.frame import options
from services.cli.frame.exits import UsageError
from services.cli.frame.options import registry_at
from services.cli.frame.output import answer, members
from services.cli.frame.pull import pull as fetched
from services.cli.frame.views import Column, Line, Styled, View, facts, size, table
from services.generation.target.errors import ConfigInvalid, ModelNotFound, TargetError, about
from services.generation.target.files.part_names import sibling_paths
from services.generation.target.model_path import default_head_for, default_store_for, named_models

if TYPE_CHECKING:
    from services.client.registry import RegistryClient
    from services.generation.target.naming.folders import NamedModel


_ABSENT = {"package": "not installed", "hub": "not fetched"}

_NOT_WHOLE = (0, 1, 32, 38)  # file types of float32, float16, bfloat16 and MXFP4


def list_(
    name: Annotated[
        Path | None,
        Argument(
            metavar="[DIR|GGUF|NAME]",
            callback=options.found_model,
            help="Show this model: family, digests, storage, memory at a context length, heads.",
        ),
    ] = None,
    context_length: Annotated[
        int | None, Option(min=32, help="Context length for the cache's size. Default: the model's, at most 8192.")
    ] = None,
    registry: Annotated[
        str | None,
        Option(envvar="KOLM_REGISTRY", metavar=options.SERVER, help="Ask this registry for heads of the base."),
    ] = None,
    json: options.Json = False,
) -> None:
    """List the models that have a name: packaged, in $KOLM_MODELS, fetched, Ollama's and LM Studio's. Or show one."""
    if name is not None:
        return _show(name, context_length, registry, json)
    if context_length is not None:
        raise UsageError("--context-length: needs the name of a model")
    with registry_at(registry) if registry else nullcontext() as client:
        answer(json, [_listed(each, client) for each in named_models()], _models_view)


def _listed(model: NamedModel, registry: RegistryClient | None) -> dict[str, Any]:
    """A line of the list: `heads` in the registry, `beside`, the kinds of folders next to the model, and `fault`, the
    reason why its files cannot be read.
    """
    listed: dict[str, Any] = {"name": model.name, "from": model.origin, "path": model.path and str(model.path)}
    if model.path is None:
        return listed
    try:
        seen = glance(model.path)
        arithmetic = ["float32", "int8"][: 1 + seen.whole_numbers]
        listed |= {"family": seen.family, "size": seen.size, "arithmetic": arithmetic}
        beside = {"head": default_head_for(model.path), "datastore": default_store_for(model.path)}
        listed["beside"] = [kind for kind, folder in beside.items() if folder]
        if registry is not None:
            from services.generation.target.identity import base_cid

            listed["heads"] = [head.head_cid for head in registry.heads(base_cid=base_cid(model.path))]
    except (OSError, TargetError) as error:
        listed["fault"] = str(error)
    return listed


def pull(
    name: Annotated[
        str, Argument(metavar="NAME", help="hf:OWNER/REPOSITORY[@REVISION][:FILE or quantisation], or qwen3:4b.")
    ],
    json: options.Json = False,
) -> None:
    """Fetch a model from a hub, or its changed files, and check their digests (HF_TOKEN, HF_ENDPOINT)."""
    from services.generation.target.naming.hub_names import SHORT, HubName

    try:
        wanted = HubName.of(name)
    except ModelNotFound as error:
        raise UsageError(f"NAME: {error}") from error
    if wanted is None:
        raise UsageError(f"NAME: {name} is on no hub; expected hf:OWNER/REPOSITORY, or one of {', '.join(SHORT)}")
    path = fetched(wanted)
    answer(json, {"name": name, "path": str(path)}, lambda _: f"{name} is in {path}; serve it with: kolm up {name}")


def _show(model: Path, context_length: int | None, registry: str | None, json: bool) -> None:
    from services.generation.target.without_torch import hide_torch

    hide_torch()

    found = _described(model, context_length)
    heads = None
    if registry is not None:
        with registry_at(registry) as client:
            heads = list(client.heads(base_cid=found["base_cid"]))
    found["heads"] = None if heads is None else [head.head_cid for head in heads]
    found["head_names"] = None if heads is None else [list(head.names) for head in heads]
    answer(json, found, _model_view)


def _described(path: Path, context_length: int | None) -> dict[str, Any]:
    """A model by its configuration and table of weights; hashes files that have no known digest. Sizes are in bytes;
    `cache_bytes` are keys and values of one sequence of `context_length` tokens, `storages` counts weights.

    Raises UsageError for other files, and for a context length beyond the model's.
    """
    from services.generation.target.blocks import BLOCK
    from services.generation.target.config.config import block_bytes, bounded, read_config, usual_cache
    from services.generation.target.cpu import profile_name
    from services.generation.target.files.gguf_file import GgufFile, is_gguf
    from services.generation.target.files.safetensors import weight_files
    from services.generation.target.identity import base_cid, tokenizer_cid
    from services.generation.target.weights import checked_weights, usual_arithmetic

    try:
        whole = read_config(path)
        config = bounded(whole, context_length)
        weights = checked_weights(path, config)
        arithmetic = usual_arithmetic(config, weights)
        storages: Counter[str] = Counter()
        for name in weights.names():
            storages[weights.storage(name)] += prod(weights.shape(name))
        files = GgufFile.open(path).paths if is_gguf(path) else weight_files(path)
        return members(config, "layers", "hidden_size", "vocab_size", "context_length") | {
            "path": str(path),
            "family": config.architecture,
            "base_cid": base_cid(path),
            "tokenizer_cid": tokenizer_cid(path),
            "arithmetic": profile_name(arithmetic),
            "model_context_length": whole.context_length,
            "storages": dict(storages.most_common()),
            "parameters": storages.total(),
            "weight_bytes": sum(file.stat().st_size for file in files),
            "cache_bytes": block_bytes(config, usual_cache(config, arithmetic)) * config.context_length // BLOCK,
        }
    except TargetError as error:
        raise UsageError(about(path, error)) from error


def _models_view(models: list[dict[str, Any]]) -> View:
    """One line for each name; `--json` and `kolm models list NAME` show the path."""
    return table(
        models,
        Column("name", "name"),
        Column("from", "from"),
        Column(
            "size",
            lambda model: size(model["size"]) if "size" in model else Styled(_ABSENT.get(model["from"], ""), "yellow"),
        ),
        Column("family", lambda model: model.get("family", "")),
        Column("arithmetic", lambda model: ", ".join(model.get("arithmetic", ()))),
        Column("fits", _fitting),
    )


def _fitting(model: dict[str, Any]) -> Line:
    if "fault" in model:
        return Styled(model["fault"], "red")
    heads = len(model.get("heads", ()))
    return ", ".join([*model.get("beside", ()), *([f"{heads} heads in the registry"] if heads else ())])


def _model_view(found: dict[str, Any]) -> View:
    stored = ", ".join(f"{name} {count / found['parameters']:.0%}" for name, count in found["storages"].items())
    cached = f"{size(found['cache_bytes'])} of cache for {found['context_length']:,} tokens"
    shape = f"{found['layers']} layers of {found['hidden_size']}, vocabulary {found['vocab_size']:,}"
    heads = zip(found["head_names"] or (), found["heads"] or (), strict=True)
    listed = "\n".join(f"{', '.join(names)} {cid}" for names, cid in heads)
    return facts(
        ("path", found["path"]),
        ("family", f"{found['family']}, {shape}"),
        ("weights", f"{found['parameters'] / 1e6:.0f} M, stored as {stored}"),
        ("context", f"{found['model_context_length']:,} tokens"),
        ("memory", f"{size(found['weight_bytes'])} of weights, {cached}"),
        ("arithmetic", found["arithmetic"]),
        ("base", found["base_cid"]),
        ("tokenizer", found["tokenizer_cid"]),
        None if found["heads"] is None else ("heads", listed or "none"),
    )


@dataclass(frozen=True, slots=True)
class Glance:
    """`family` is empty if the files do not name it. `whole_numbers`: `--arithmetic int8` is defined for it."""

    family: str
    size: int
    whole_numbers: bool


def glance(path: Path) -> Glance:
    """Raises OSError, ConfigInvalid or WeightsInvalid."""
    if path.is_file():
        from services.generation.target.files.gguf_header import read_gguf_header
        from services.generation.target.files.stored_tensor import map_file

        metadata = read_gguf_header(path, map_file(path).data).metadata
        kept = metadata.whole("general.file_type", 0) not in _NOT_WHOLE
        size = sum(part.stat().st_size for part in sibling_paths(path) if part.is_file())
        return Glance(metadata.text("general.architecture", ""), size, kept)
    size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    try:
        document = json.loads((path / "config.json").read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigInvalid(f"{path}/config.json: not readable as JSON: {error}; download it again") from error
    if not isinstance(document, dict):
        raise ConfigInvalid(f"{path}/config.json: expected a JSON object; download it again")
    return Glance(str(document.get("model_type") or ""), size, False)
