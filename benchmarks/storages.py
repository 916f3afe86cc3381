"""SmolLM2's published GGUF file, rewritten in other storages, so that all engines read the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gguf import GGUFReader, GGUFWriter, Keys, ReaderField
from gguf.constants import GGUF_DEFAULT_ALIGNMENT, GGUFValueType
from gguf.quants import dequantize, quantize

from services.generation.target.files.stored_tensor import LAYOUTS

STORAGES = ("q4_1", "q8_0", "bfloat16", "float32")  # the first is the published file
_SCRATCH = Path(__file__).parent / "scratch"
_WRITTEN = {Keys.General.ARCHITECTURE, Keys.General.FILE_TYPE, "general.alignment", "GGUF.version"}


def in_storage(published: Path, storage: str, folder: Path = _SCRATCH) -> Path:
    """The path of a copy with all matrices in `storage`, written to `folder` if it is missing. Values are rounded if
    the storage has fewer bits.
    """
    path = folder / f"{published.stem}.{storage}.gguf"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(published)
    architecture = str(reader.fields[Keys.General.ARCHITECTURE].contents())
    part = path.with_suffix(".part")
    writer = GGUFWriter(part, architecture)
    writer.data_alignment = GGUF_DEFAULT_ALIGNMENT
    for name, field in reader.fields.items():
        if name not in _WRITTEN and not name.startswith("GGUF."):
            _copy(writer, name, field)
    kind = LAYOUTS[storage].ggml
    values = {tensor.name: tensor for tensor in reader.tensors}
    for name, tensor in values.items():
        weights = dequantize(tensor.data, tensor.tensor_type)
        if weights.ndim == 1:
            writer.add_tensor(name, weights)
        else:
            writer.add_tensor(name, quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)
    return path


def _copy(writer: GGUFWriter, name: str, field: ReaderField) -> None:
    kind = field.types[0]
    part = field.types[-1] if kind == GGUFValueType.ARRAY else None
    writer.add_key_value(name, field.contents(), kind, sub_type=part)


def as_folder(file: Path) -> Path:
    """Convert a GGUF file, values rounded to bfloat16, with its tokenizer to a folder beside it that vLLM loads."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder = file.with_suffix("")
    if not folder.exists():
        whole = GgufConfig(gguf_file=file.name, dequantize=True)
        named: dict[str, Any] = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
        model = AutoModelForCausalLM.from_pretrained(**named, dtype=torch.bfloat16, quantization_config=whole)
        part = file.with_suffix(".folder")
        model.save_pretrained(part)
        AutoTokenizer.from_pretrained(**named).save_pretrained(part)
        part.rename(folder)
    return folder
