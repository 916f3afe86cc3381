"""`kolm models`: the models that `--model` can name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import options

Named = Annotated[
    Path,
    typer.Argument(
        metavar="DIR|GGUF|NAME", callback=options.found_model, help="A transformers directory, a GGUF file or a name."
    ),
]


def list_(json: options.Json = False) -> None:
    """List the models that have a name: those of installed packages, and those that were imported."""
    from services.cli.jobs.models import named_models
    from services.cli.terminal.output import answer
    from services.cli.views.models import models_json, models_view

    found = list(named_models())
    answer(json, lambda: models_json(found), lambda: models_view(found))


def show(
    model: Named,
    context_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens that the cache is to hold. Default: the model's, at most 8192.")
    ] = None,
    registry: Annotated[
        str | None, typer.Option(envvar="KOLM_REGISTRY", metavar=options.SERVER, help="Ask it for heads of this base.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Show what a model is: family, digests, storage, memory at a context length, its heads."""
    from services.cli.jobs.models import describe
    from services.cli.terminal.output import data, print_json
    from services.cli.views.models import model_json, model_view
    from services.client.registry.registry import RegistryClient

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
    source: Named,
    name: Annotated[str, typer.Option(help="The name for --model.")],
    json: options.Json = False,
) -> None:
    """Check a model and copy it to the folder of models ($KOLM_MODELS), where --model finds it by name."""
    from services.cli.jobs.models import import_model
    from services.cli.terminal.output import answer

    path = import_model(source, name)
    answer(
        json,
        lambda: {"name": name, "path": str(path)},
        lambda: f"{name} is in {path}; serve it with: kolm up --model {name}",
    )
