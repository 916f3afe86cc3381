"""`python -m services.generation [--model DIR] [--ledger HOST:PORT]`: checks the settings, then starts the engine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING

from services.generation.settings import GenerationSettings
from services.generation.state_folder import one_at_a_time
from services.generation.target.errors import TargetError
from services.generation.target.files.gguf_file import held_open
from services.generation.target.identity import hash_ahead
from services.generation.target.kernels.compilation import loading_folder
from services.generation.target.model_path import default_head_for, default_store_for
from services.generation.target.weights import check_headers, has_own_head
from services.generation.target.without_torch import hide_torch
from services.generation.warm_up import after_compiling, compile_beside
from services.runtime.process import CannotStart, run_service

if TYPE_CHECKING:
    from services.runtime.server import RunningServer

_SWITCH_SECONDS = 0.0005
"""The longest time that the event loop holds the interpreter, which the engine's thread releases for each pass and
draft step: at Python's 5 ms, 16 callers get 8 % fewer drafted tokens a second.
"""


async def main(
    settings: GenerationSettings, beside: Callable[[RunningServer], AbstractAsyncContextManager[object]] = nullcontext
) -> None:
    """Check the model's headers, compile in other processes, then load and serve (`services.generation.serving`)."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    own = settings.engine == "kolm"
    with ExitStack() as loading:
        try:
            if own or settings.weights is not None:
                loading.enter_context(held_open(settings.weights or settings.model))
                check_headers(settings.weights or settings.model)
        except TargetError as error:
            raise CannotStart(f"cannot serve {error}") from error
        loading.enter_context(one_at_a_time(loading_folder(), shared=True))
        if own:
            hash_ahead(settings.model)  # while modules are imported
            compile_beside("greedy", settings.log_format)
        # The registry seldom has a head at a first start.
        found = settings.auto_discover and default_head_for(settings.model)
        inside = own and settings.own_head and has_own_head(settings.model)
        models = own and bool(settings.head or settings.draft_model or found or inside)
        if models:
            compile_beside("trees", settings.log_format)
        stores = settings.datastores or (settings.auto_discover and default_store_for(settings.model))
        if models or (own and stores):  # otherwise when the first requests are answered
            compile_beside("copies", settings.log_format)
        hide_torch()
        if own and settings.device in (None, "cpu"):
            from services.generation.target.cpu import compile_beside as compile_kernels

            compile_kernels(settings.model, settings.cache_dtype, settings.arithmetic)
        from services.generation.serving import main

        def loaded() -> None:
            loading.close()
            if own:  # the default is temperature 0
                after_compiling("sampling", settings.log_format)

        await main(settings, on_loaded=loaded, beside=beside)


if __name__ == "__main__":
    sys.exit(run_service(GenerationSettings, main))
