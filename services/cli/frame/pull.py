"""Models that are fetched from a hub before they are used, after a line about source, size and licence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from services.cli.frame.exits import CommandError, Failed, NotFound, Unreachable, UsageError, VerificationFailed
from services.cli.frame.options import found_model
from services.cli.frame.process import print_error
from services.cli.frame.views import size
from services.generation.target.errors import ModelNotFound
from services.generation.target.model_path import model_path

if TYPE_CHECKING:
    from services.generation.target.naming.hub import HubModel
    from services.generation.target.naming.hub_names import HubName


def pulled_model(context: typer.Context, param: typer.CallbackParam, named: Path | None) -> Path | None:
    """Callback of options that take a model: it is fetched if it has the name of a model on a hub and is not here."""
    from services.generation.target.naming.folders import to_pull

    try:
        return None if named is None else model_path(named)
    except ModelNotFound:
        name = to_pull(str(named))
    return pull(name) if name else found_model(context, param, named)


def pull(name: HubName) -> Path:
    """Fetch a model, or the files of it that changed. Raises CommandError."""
    from services.generation.target.naming import hub

    return _fetched(name, hub.look_up)[1]


@dataclass(frozen=True, slots=True)
class PulledHead:
    """A draft head's files as its repository has them at a commit."""

    commit: str
    config: Path
    weights: tuple[Path, ...]  # one file, or an index and the files that it names


def pull_head(name: HubName) -> PulledHead:
    """Fetch a draft head. Raises CommandError."""
    from services.generation.target.naming import hub

    head, folder = _fetched(name, hub.look_up_head)
    config, *weights = (folder / file.name for file in head.files)
    return PulledHead(head.commit, config, tuple(weights))


def _fetched(name: HubName, look_up: Callable[[HubName], HubModel]) -> tuple[HubModel, Path]:
    from huggingface_hub import constants

    from services.generation.target.naming import hub

    kinds: dict[type[hub.HubError], type[CommandError]] = {
        hub.NotOnHub: NotFound,
        hub.HubAway: Unreachable,
        hub.DigestWrong: VerificationFailed,
    }
    try:
        model = look_up(name)
        files = model.file or f"{len(model.files)} files"
        to_fetch = f"{size(model.missing)} of {size(model.size)} to fetch" if model.missing else "all of it is here"
        source = f"from {constants.ENDPOINT}, commit {model.commit[:12]}, licence {model.licence}"
        print_error(f"{name}: {files} {source}; {to_fetch}")
        return model, hub.fetch(model)
    except ModelNotFound as error:
        raise UsageError(str(error)) from error
    except hub.HubError as error:
        raise kinds.get(type(error), Failed)(str(error)) from error
