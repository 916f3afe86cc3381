"""Kinds of settings, in words: `--help` shows the short form, docs/configuration.md the long one and an example."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from urllib.parse import urlsplit

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, ByteSize, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from services.runtime.usage import checked_name

_BY_NAME = (  # metavar and words by the metavar of the type and the end of the setting's name
    ("PATH", ("_dir", "_keys"), "DIR", "folder"),
    ("PATH", ("_file", "config"), "FILE", "file"),
    ("NUMBER", ("_seconds", "_timeout"), "SECONDS", "seconds"),
    ("N", ("_seconds",), "SECONDS", "whole seconds"),
    ("NUMBER", ("_days",), "DAYS", "days"),
    ("N", ("_bytes",), "BYTES", "bytes, a whole number"),
)

Name = Annotated[str, AfterValidator(checked_name)]
"""A name that is shown and logged."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value, for the `Annotated` of a setting whose kind does not follow from its type and name.

    `repeated`: a flag that may be given more than once, a list in TOML. A switch has no metavar.
    """

    metavar: str
    words: str
    example: str | float | bool
    repeated: bool = False


Target = Annotated[str, Kind("HOST:PORT", "host:port, or any gRPC name", "kolm.internal:50052")]
"""A service that is called."""

Adapter = Annotated[str, Kind("NAME=DIR", "name=folder", "courteous=adapters/courteous")]
"""A LoRA adapter with the name that requests use."""


def reachable(url: str) -> str:
    """The URL. Raises ValueError for a text without a host, or with parts that requests do not send."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of the port, or of brackets
        known = False
    if not known or "@" in parts.netloc or parts.query or parts.fragment:
        shown = re.sub("//[^/]*@", "//…@", url)
        raise ValueError(f"expected http://HOST[:PORT][/PATH] or https://, without a user or a query, got {shown!r}")
    return url


Url = Annotated[str, AfterValidator(reachable), Kind("URL", "URL with http:// or https://", "http://127.0.0.1:8000")]
"""The URL of an HTTP server, without its key, which comes from a file."""


def key_in(file: Path) -> str:
    """The key. Raises ValueError for a file that cannot be read, and for characters that no header can carry."""
    try:
        key = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it holds other characters than a key has"
        raise ValueError(f"cannot read {file}: {why}") from None
    if not key.isprintable() or " " in key or not key:
        raise ValueError(f"expected a file with one key in one line, got {file}")
    return key


def _with_a_key(file: Path) -> Path:
    key_in(file)
    return file


KeyFile = Annotated[Path, AfterValidator(_with_a_key)]
"""A file with the key of such a server."""

_PLAIN = {
    Path: Kind("PATH", "path", "/var/lib/kolm/{}"),
    ByteSize: Kind("SIZE", "bytes, plain or with a unit", "2GiB"),
    SecretStr: Kind("SECRET", "secret", "change-me"),
    bool: Kind("", "true or false", True),
    int: Kind("N", "whole number", 1),
    float: Kind("NUMBER", "number", 0.5),
    str: Kind("TEXT", "text", "{}"),
}


def kind_of(name: str, field: FieldInfo) -> Kind:
    """The kind of the setting `name`. Its example is the first of `Field(examples=…)`, or else a likely one."""
    kind = _kind(name, field.annotation, field.metadata)
    example: Any = kind.example
    if field.examples:
        (example, *_) = field.examples
    elif kind.metavar == "":
        example = not field.default
    elif isinstance(field.default, int | float | str | Path):
        example = str(field.default) if isinstance(field.default, Path) else field.default
    elif isinstance(example, str):
        example = example.format(name.replace("_", "-"))
    return replace(kind, example=example)


def default_of(field: FieldInfo) -> tuple[str, str]:
    """The default in words, and the description without its last part, `Default: …`."""
    if field.default is PydanticUndefined:
        return "required", field.description or ""
    if field.default is None or field.default == ():
        text, _, default = (field.description or "").partition(" Default: ")
        return default.removesuffix(".") or "none", text
    return plain(field.default), field.description or ""


def plain(value: Any) -> str:
    """A value as flags and variables take it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _kind(name: str, annotation: Any, metadata: list[Any]) -> Kind:
    for each in metadata:
        if isinstance(each, Kind):
            return each
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [part for each in arguments[1:] for part in (each.metadata if isinstance(each, FieldInfo) else [each])]
        return _kind(name, arguments[0], [*inner, *metadata])
    if origin in (Union, types.UnionType):
        (other,) = (each for each in arguments if each is not type(None))
        return _kind(name, other, metadata)
    if origin is tuple:
        one = _kind(name, arguments[0], [])
        return replace(one, words=f"{one.words}; may be repeated", repeated=True)
    if origin is Literal:
        words = [str(each) for each in arguments]
        return Kind("|".join(words), f"{', '.join(words[:-1])} or {words[-1]}", words[-1])
    kind = _named(name, _PLAIN[annotation])
    return replace(kind, words=kind.words + _bounds(metadata))


def _named(name: str, kind: Kind) -> Kind:
    for metavar, endings, better, words in _BY_NAME:
        if kind.metavar == metavar and name.endswith(endings):
            return replace(kind, metavar=better, words=words)
    return kind


def _bounds(metadata: Iterable[Any]) -> str:
    """`, 0 to 1`; `, above 0`; `, at least 1`."""
    bounds = {
        bound: getattr(each, bound)
        for each in metadata
        for kind, bound in ((Ge, "ge"), (Le, "le"), (Gt, "gt"), (Lt, "lt"))
        if isinstance(each, kind)
    }
    if {"ge", "le"} <= bounds.keys():
        return f", {bounds['ge']:,g} to {bounds['le']:,.10g}"
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return "".join(f", {word} {bounds[bound]:,.10g}" for bound, word in words.items() if bound in bounds)
