"""The errors of the target: about a model, an adapter or a pass."""

from __future__ import annotations

from pathlib import Path


class TargetError(Exception):
    """A model that cannot be served; the message has the found value, the expected one and a remedy."""


def about(path: Path, error: TargetError) -> str:
    """An error's message, preceded by the model's path unless it names that."""
    return str(error) if str(path) in str(error) else f"{path}: {error}"


class ModelNotFound(TargetError):
    """The model, or a required file of a model directory, is missing."""


class UnsupportedArchitecture(TargetError):
    """The canonical pass does not implement an architecture or an option of config.json."""


class ConfigInvalid(TargetError):
    """config.json is not JSON, or a value in it is missing, of the wrong type or out of range."""


class WeightsInvalid(TargetError):
    """A weight file is missing, truncated or disagrees with config.json."""


class ArithmeticUnsupported(TargetError):
    """The requested arithmetic is not defined for these weights."""


class AdapterInvalid(TargetError):
    """An adapter's file is missing or truncated, disagrees with its configuration, or is for another base."""


class AdapterUnsupported(TargetError):
    """An adapter does something other than LoRA on the linear layers of the decoder."""


class CacheFull(TargetError):
    """No free block is left in the key/value cache; nothing was allocated."""
