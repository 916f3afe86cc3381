"""The settings of a service, which are its flags and its environment variables."""

from __future__ import annotations

import importlib

from services.runtime.settings import ServerSettings


def service_settings(module: str) -> type[ServerSettings]:
    found = vars(importlib.import_module(f"{module}.settings")).values()
    (own,) = {each for each in found if isinstance(each, type) and each.__module__ == f"{module}.settings"}
    assert issubclass(own, ServerSettings)
    return own
