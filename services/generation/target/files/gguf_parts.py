"""The headers of a GGUF model in parts, as llama-gguf-split writes them, joined into one.

The first part has all metadata. Each part has tensors of its own, `split.no` (its number, from 0), `split.count` and
`split.tensors.count` (the number of tensors of all parts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from services.generation.target.errors import WeightsInvalid
from services.generation.target.files.gguf_header import GgufHeader, GgufMetadata, TensorPlace
from services.generation.target.files.part_names import PartName

_COUNT, _NUMBER, _TENSORS = "split.count", "split.no", "split.tensors.count"
_AGAIN = "download all parts from one repository and revision"


def part_count(metadata: GgufMetadata) -> int:
    """The number of parts that the file is one of; 1 for a whole model."""
    return metadata.whole(_COUNT, 1, least=1)


def check_first(path: Path, metadata: GgufMetadata) -> None:
    """Raises WeightsInvalid unless `path` names the first of the parts that its metadata counts."""
    count, number, name = part_count(metadata), metadata.whole(_NUMBER, 0) + 1, PartName.of(path.name)
    if name is None or name.count != count:
        raise WeightsInvalid(
            f"{path}: is part {number} of {count} by its metadata; expected it under the name "
            f"NAME-{number:05}-of-{count:05}.gguf, as it was published"
        )
    if (name.number, number) != (1, 1):
        first = path.with_name(name.siblings()[0]).name
        raise WeightsInvalid(f"{path}: is part {number} of {count}; name the first part, {first}")


def joined(paths: Sequence[Path], headers: Sequence[GgufHeader]) -> GgufHeader:
    """One header for all parts: the metadata of the first, and the tensors of all with the number of their part.

    Raises:
        WeightsInvalid: a part has another number than its name, belongs to another model, or repeats a tensor.
    """
    first, count = headers[0].metadata, len(paths)
    expected = first.whole(_TENSORS)
    tensors: dict[str, TensorPlace] = {}
    for at, (path, header) in enumerate(zip(paths, headers, strict=True)):
        metadata = header.metadata
        found = metadata.whole(_NUMBER) + 1, part_count(metadata)
        if found != (at + 1, count):
            raise WeightsInvalid(
                f"{path}: is part {found[0]} of {found[1]} by its metadata; expected part {at + 1} of {count}: "
                "download it again"
            )
        foreign = metadata.whole(_TENSORS) != expected or not tensors.keys().isdisjoint(header.tensors)
        if foreign or metadata.get("general.architecture", own := first.get("general.architecture")) != own:
            raise WeightsInvalid(f"{path}: part {at + 1} of {count} is not of the model of {paths[0].name}: {_AGAIN}")
        tensors |= {name: replace(place, part=at) for name, place in header.tensors.items()}
    if len(tensors) != expected:
        raise WeightsInvalid(f"{paths[0]}: {count} parts with {len(tensors)} tensors; expected {expected}: {_AGAIN}")
    return GgufHeader(first, tensors)
