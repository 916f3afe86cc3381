"""`kolm models`: the models that `--model` can name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.failures.exits import UsageError
from services.cli.options import options


def list_(
    name: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR|GGUF|NAME]",
            callback=options.found_model,
            help="What this one is: family, digests, storage, memory at a context length, its heads.",
        ),
    ] = None,
    context_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens that the cache is to hold. Default: the model's, at most 8192.")
    ] = None,
    registry: Annotated[
        str | None, typer.Option(envvar="KOLM_REGISTRY", metavar=options.SERVER, help="Ask it for heads of this base.")
    ] = None,
    json: options.Json = False,
) -> None:
    """List the models that have a name: those of installed packages, and those that were imported. Or show one."""
    if name is not None:
        return _show(name, context_length, registry, json)
    if context_length is not None:
        raise UsageError("--context-length: is that of one model; name it")
    from services.cli.terminal.output import answer
    from services.cli.views.models import models_json, models_view
    from services.generation.target.model_path import named_models

    found = named_models()
    answer(json, lambda: models_json(found), lambda: models_view(found))


def _show(model: Path, context_length: int | None, registry: str | None, json: bool) -> None:
    from services.generation.target.without_torch import spare_torch

    spare_torch()
    from services.cli.jobs.models import describe
    from services.cli.terminal.output import data, print_json
    from services.cli.views.models import model_json, model_view
    from services.client.registry import RegistryClient

    found = describe(model, context_length)
    heads = None
    if registry is not None:
        with RegistryClient.connect(registry) as client:
            heads = list(client.heads(base_cid=found.base_cid))
    if json:
        print_json(model_json(found, heads))
    else:
        data().print(model_view(found, heads), soft_wrap=True)


def import_(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|GGUF|NAME",
            callback=options.found_model,
            help="A transformers directory, a GGUF file or a name.",
        ),
    ],
    name: Annotated[str, typer.Option(help="The name for --model.")],
    json: options.Json = False,
) -> None:
    """Check a model and copy it to the folder of models ($KOLM_MODELS), where --model finds it by name."""
    from services.generation.target.without_torch import spare_torch

    spare_torch()
    from services.cli.jobs.models import import_model
    from services.cli.terminal.output import answer

    path = import_model(source, name)
    answer(
        json,
        lambda: {"name": name, "path": str(path)},
        lambda: f"{name} is in {path}; serve it with: kolm up --model {name}",
    )
