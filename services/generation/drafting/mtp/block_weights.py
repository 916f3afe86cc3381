"""An MTP block in memory, read from the files of its model.

Tensors are as in Qwen3-Next, Qwen3.5 and later, dense and with experts, and as vLLM (qwen3_5_mtp), llama.cpp (nextn)
and speculators (MTPDraftModel) read them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ledger.encoding.text_forms import cid_of_json
from services.generation.drafting.heads import HeadForAnotherBase, HeadWeightsInvalid
from services.generation.target.arrays import Float32, Int64
from services.generation.target.config.config import TargetConfig
from services.generation.target.config.config_document import named_family
from services.generation.target.config.layer_specs import HEAD, LayerSpec, layer_specs
from services.generation.target.errors import WeightsInvalid
from services.generation.target.families import BY_NAME
from services.generation.target.family import NORM, OWN_HEAD
from services.generation.target.files.gguf_file import GgufFile, is_gguf
from services.generation.target.files.part_names import sidecar_path
from services.generation.target.files.safetensors import SafetensorsFiles
from services.generation.target.files.stored_tensor import StoredTensor
from services.generation.target.program.matrices import vector
from services.generation.target.weights import Weights, checked_weights, output_name

JOINT, LAST_NORM = f"{OWN_HEAD}fc.weight", f"{OWN_HEAD}norm.weight"
EMBEDDING_NORM, HIDDEN_NORM = (f"{OWN_HEAD}pre_fc_norm_{of}.weight" for of in ("embedding", "hidden"))
OWN_EMBEDDING, OWN_OUTPUT = f"{OWN_HEAD}embed_tokens.weight", f"{OWN_HEAD}lm_head.weight"
"""An embedding and an output matrix that a block has in place of its base's."""

_LAYER = f"{OWN_HEAD}layers.0."
_SHOWN = 4  # names in a message


@dataclass(frozen=True, slots=True)
class MtpConfig:
    """`DraftHead.config` of a block: it reads the stream after the base's last layer."""

    feature_layers: tuple[int, ...]
    target_hidden_size: int


@dataclass(frozen=True, slots=True, eq=False)
class MtpBlock:
    """Checked against its base; pure data, mapped from disk, `MtpPass` computes with it."""

    kind: ClassVar[str] = "mtp"

    base: TargetConfig
    cid: str  # of its tensors, whichever rows of the output matrix are drafted: a halt outlasts another choice of rows
    tensors: Mapping[str, StoredTensor]  # under the names of `block_shapes`, and OWN_EMBEDDING
    base_norm: Float32  # [hidden] weights of the base's final norm, their offset added
    output: StoredTensor | None  # [draft vocabulary, hidden]; None: the target's output matrix gives logits
    target_ids: Int64  # [draft vocabulary] the target's tokens, ascending

    @property
    def config(self) -> MtpConfig:
        return MtpConfig((self.base.layers,), self.base.hidden_size)


def layer_alike(base: TargetConfig) -> int:
    """The number of a layer of the base with the block's kinds of parts: attention, and experts if any layer with
    attention has them. Raises HeadForAnotherBase if no layer has attention.
    """
    attending = [number for number in range(base.layers) if not (base.rule and base.rule.layers[number])]
    with_experts = [number for number in attending if base.experts and base.experts.layers[number]]
    if not attending:
        raise HeadForAnotherBase("an MTP block attends as its base does, and no layer of this base attends")
    return (with_experts or attending)[0]


def block_layer(base: TargetConfig) -> LayerSpec:
    """The block's decoder layer as the target's kernels know it."""
    return replace(layer_specs(base)[layer_alike(base)], prefix=_LAYER)


def block_shapes(base: TargetConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a block for this base; matrices are [out, in]."""
    hidden = base.hidden_size
    norms = dict.fromkeys((EMBEDDING_NORM, HIDDEN_NORM, LAST_NORM), (hidden,))
    return {JOINT: (hidden, 2 * hidden), **norms, **block_layer(base).shapes(hidden)}


def read_block(path: Path, base: TargetConfig, draft_tokens: Int64 | None = None) -> MtpBlock | None:
    """The block inside the model at `path`, or in the sidecar beside a GGUF file; None if there is none, or if blocks
    of the model's family are not read.

    `draft_tokens` [n]: ids, ascending, that the block drafts; the rows of the output matrix for them are gathered. With
    None it drafts all tokens. A sidecar with a smaller output matrix has tokens of its own.

    Raises:
        HeadWeightsInvalid: a tensor is missing, unknown, of another shape, or holds a value that is not finite.
        TargetError: the files cannot be read.
    """
    family = BY_NAME[base.architecture]
    if not family.own_head:
        return None
    files = _own_files(path)
    if not files.tensors:
        return None
    weights, own = checked_weights(path, base), files.tensors
    if is_gguf(path) and LAST_NORM not in own:  # llama.cpp takes the base's there
        own[LAST_NORM] = weights.tensor(NORM)
    tokens = _checked_tokens(files.tokens, base)
    _check(own, base, base.vocab_size if tokens is None else len(tokens))
    if tokens is None:
        output, ids = _output(own, weights, base, draft_tokens), draft_tokens
    else:
        order = tokens.argsort()
        output, ids = replace(own[OWN_OUTPUT], data=own[OWN_OUTPUT].data[order]), tokens[order]
    return MtpBlock(
        base=base,
        cid=cid_of_tensors(own, tokens),
        tensors={name: tensor for name, tensor in own.items() if name != OWN_OUTPUT},
        base_norm=vector(weights.tensor, NORM, base.norm_offset),
        output=output,
        target_ids=np.arange(base.vocab_size) if ids is None else ids,
    )


@dataclass(frozen=True, slots=True)
class _OwnFiles:
    """Tensors of a block. `tokens`: of the rows of its output matrix, if it has fewer rows than the vocabulary."""

    tensors: dict[str, StoredTensor]
    tokens: Int64 | None = None


def _own_files(path: Path) -> _OwnFiles:
    if not is_gguf(path):
        family = named_family(path)
        return _OwnFiles(SafetensorsFiles.own_head(path, family) if family else {})
    if found := GgufFile.open(path).own_head():
        return _OwnFiles(found)
    sidecar = sidecar_path(path)
    if sidecar is None:
        return _OwnFiles({})
    file = GgufFile.open(sidecar)
    found, tokens = file.own_head(), file.draft_tokens()
    if not found:
        raise HeadWeightsInvalid(f"{sidecar}: no MTP block; expected blk.N.nextn.* and nextn_predict_layers")
    if tokens is not None and OWN_OUTPUT not in found and HEAD in file.names():
        found[OWN_OUTPUT] = replace(file.tensor(HEAD), name=OWN_OUTPUT)
    if tokens is not None and OWN_OUTPUT not in found:
        raise HeadWeightsInvalid(f"{sidecar}: d2t without output.weight, whose rows it names")
    return _OwnFiles(found, tokens)


def _checked_tokens(tokens: Int64 | None, base: TargetConfig) -> Int64 | None:
    if tokens is None:
        return None
    if tokens.min() < 0 or tokens.max() >= base.vocab_size or len(np.unique(tokens)) < len(tokens):
        raise HeadWeightsInvalid(
            f"d2t names tokens from {tokens.min()} to {tokens.max()}, {len(tokens) - len(np.unique(tokens))} of them "
            f"twice; expected different tokens from 0 to {base.vocab_size - 1}"
        )
    return tokens


def _output(
    own: Mapping[str, StoredTensor], weights: Weights, base: TargetConfig, draft_tokens: Int64 | None
) -> StoredTensor | None:
    """The rows of the output matrix that drafts need, as they are stored."""
    if draft_tokens is None:
        return own.get(OWN_OUTPUT)
    whole = own[OWN_OUTPUT] if OWN_OUTPUT in own else weights.tensor(output_name(weights, base))
    return replace(whole, shape=(len(draft_tokens), base.hidden_size), data=whole.data[draft_tokens])


def _check(own: Mapping[str, StoredTensor], base: TargetConfig, output_rows: int) -> None:
    shapes, hidden = block_shapes(base), base.hidden_size
    missing = sorted(shapes.keys() - own.keys())
    shapes |= {OWN_EMBEDDING: (base.vocab_size, hidden), OWN_OUTPUT: (output_rows, hidden)}
    unknown = sorted(own.keys() - shapes.keys())
    if missing or unknown:
        raise HeadWeightsInvalid(
            f"the MTP block inside the model: missing {_listing(missing)}; unknown {_listing(unknown)}; supported: "
            "one block of the model's own layers; download the model again, or leave the block out: --no-own-head"
        )
    for name, tensor in own.items():
        if tensor.shape != shapes[name]:
            raise HeadWeightsInvalid(
                f"{name} has shape {list(tensor.shape)}; the model's configuration makes it {list(shapes[name])}"
            )
        try:
            tensor.check_finite()
        except WeightsInvalid as error:
            raise HeadWeightsInvalid(str(error)) from error


def _listing(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) or "nothing") + more


def cid_of_tensors(tensors: Mapping[str, StoredTensor], tokens: Int64 | None = None) -> str:
    """The digest of a canonical listing of all tensors (storage, shape and SHA-256 of the bytes of each) and, if it has
    a `d2t`, of the SHA-256 of its tokens, each as eight bytes, little endian.
    """
    listed = {
        name: {"storage": tensor.storage, "shape": list(tensor.shape), "sha256": _sha256(tensor.data)}
        for name, tensor in tensors.items()
    }
    own_tokens = {} if tokens is None else {"d2t": _sha256(tokens.astype("<i8"))}
    return cid_of_json({"type": "kolm.mtp.v1", "tensors": listed, **own_tokens})


def _sha256(data: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(data).data).hexdigest()
