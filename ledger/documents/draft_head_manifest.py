"""The manifest of a draft head: its files, the base that it belongs to, and the sizes that a loader
has to know beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ledger.documents.named_file import NamedFile, named_files
from ledger.encoding.canonical import canonical, parse
from ledger.encoding.cid import cid
from ledger.encoding.fields import Fields, checked_integer
from ledger.errors import FormatError

MAX_MANIFEST_BYTES = 256 * 1024
CONFIG_TYPE = "application/vnd.kolm.eagle3.config.v1+json"
WEIGHTS_TYPE = "application/vnd.kolm.eagle3.weights.v1+safetensors"

_MOST_LAYERS = 1024
_MOST_WORDS = 256
_MOST_WEIGHT_FILES = 64


@dataclass(frozen=True, slots=True)
class DraftHeadManifest:
    """A `kolm.head.v1` document. The identifier of a draft head is that of its manifest's canonical bytes.

    `subject` is the base_cid of the base that it was trained on. `feature_layers` are indexes of hidden states (0 =
    embeddings), low to high. `training` holds facts about how it was trained, `annotations` any texts of its publisher;
    both are signed with the rest, and no program reads them.
    """

    TYPE: ClassVar[str] = "kolm.head.v1"

    subject: str
    config: NamedFile
    weights: tuple[NamedFile, ...]
    hidden_size: int
    feature_layers: tuple[int, ...]
    vocab_size: int
    draft_vocab_size: int
    training: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def cid(self) -> str:
        return cid(self.to_bytes())

    @property
    def files(self) -> tuple[NamedFile, ...]:
        """Every file of the draft head."""
        return (self.config, *self.weights)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def to_bytes(self) -> bytes:
        return canonical(self.to_document())

    def to_document(self) -> dict[str, Any]:
        return {
            "type": self.TYPE,
            "subject": self.subject,
            "config": {"media_type": CONFIG_TYPE, "file": self.config.to_document()},
            "weights": {"media_type": WEIGHTS_TYPE, "files": [file.to_document() for file in self.weights]},
            "hidden_size": self.hidden_size,
            "feature_layers": list(self.feature_layers),
            "vocabulary": {"size": self.vocab_size, "draft_size": self.draft_vocab_size},
            "training": dict(self.training),
            "annotations": dict(self.annotations),
        }

    @classmethod
    def from_bytes(cls, data: bytes) -> DraftHeadManifest:
        """The manifest of canonical bytes. Raises FormatError naming the first field that is wrong."""
        if len(data) > MAX_MANIFEST_BYTES:
            raise FormatError("manifest", f"measures {len(data)} bytes, at most {MAX_MANIFEST_BYTES} are taken")
        fields = Fields(parse(data, "manifest"))
        fields.constant("type", cls.TYPE)
        vocabulary = fields.part("vocabulary")
        manifest = cls(
            subject=fields.cid("subject"),
            config=_config(fields.part("config")),
            weights=_weights(fields.part("weights")),
            hidden_size=fields.integer("hidden_size", 1),
            feature_layers=_feature_layers(fields),
            vocab_size=vocabulary.integer("size", 1),
            draft_vocab_size=vocabulary.integer("draft_size", 1),
            training=_training(fields.read("training")),
            annotations=_annotations(fields.read("annotations")),
        )
        vocabulary.close()
        fields.close()
        _check(manifest)
        return manifest


def _config(fields: Fields) -> NamedFile:
    fields.constant("media_type", CONFIG_TYPE)
    file = NamedFile.from_document(fields.read("file"), fields.path("file"))
    fields.close()
    return file


def _weights(fields: Fields) -> tuple[NamedFile, ...]:
    fields.constant("media_type", WEIGHTS_TYPE)
    found = named_files(fields, "files", _MOST_WEIGHT_FILES)
    fields.close()
    return found


def _feature_layers(fields: Fields) -> tuple[int, ...]:
    path, values = fields.path("feature_layers"), fields.array("feature_layers")
    if not 1 <= len(values) <= _MOST_LAYERS:
        raise FormatError(path, f"expected 1 to {_MOST_LAYERS} layers, got {len(values)}")
    return tuple(checked_integer(value, f"{path}[{place}]", 0, _MOST_LAYERS) for place, value in enumerate(values))


def _training(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FormatError("training", "expected a JSON object")
    return value


def _annotations(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(word, str) for word in value.values()):
        raise FormatError("annotations", "expected a JSON object of texts")
    if len(value) > _MOST_WORDS:
        raise FormatError("annotations", f"has {len(value)} members, at most {_MOST_WORDS} are taken")
    return value


def _check(manifest: DraftHeadManifest) -> None:
    names = [file.name for file in manifest.files]
    if len(set(names)) != len(names):
        raise FormatError("weights.files", "bears the name of the configuration")
    if manifest.draft_vocab_size > manifest.vocab_size:
        raise FormatError("vocabulary.draft_size", f"expected at most vocabulary.size = {manifest.vocab_size}")
