"""The error family of the target: everything that can be wrong with a model directory or with a pass."""

from __future__ import annotations

from pathlib import Path


class TargetError(Exception):
    """A model that cannot be served; the message says what was found, what was expected and what to do."""


def about(path: Path, error: TargetError) -> str:
    """An error's words, behind the model that it is about where they do not name that themselves."""
    return str(error) if str(path) in str(error) else f"{path}: {error}"


class ModelNotFound(TargetError):
    """The directory, or a file that every model directory has, is missing."""


class UnsupportedArchitecture(TargetError):
    """config.json names an architecture or an option that the canonical pass does not implement."""


class ConfigInvalid(TargetError):
    """config.json is not JSON, or a value in it is missing, of the wrong type or out of range."""


class WeightsInvalid(TargetError):
    """A weight file is missing, truncated or disagrees with config.json."""


class ArithmeticUnsupported(TargetError):
    """The weights are not of a kind that the arithmetic asked for is defined on."""


class AdapterInvalid(TargetError):
    """An adapter's file is missing or truncated, disagrees with its configuration, or is for another base."""


class AdapterUnsupported(TargetError):
    """An adapter does something other than LoRA on the linear layers of the decoder."""


class CacheFull(TargetError):
    """No free block is left in the key/value cache; nothing was allocated."""
