"""Imports that most forks need, without torch, as services have them."""

# ruff: noqa: E402, F401 - imported to be there, and transformers after torch is spared
import gc

from services.generation.target.without_torch import hide_torch

gc.disable()
hide_torch()

import services.auditor.serving
import services.cli.main
import services.cli.up.local_services
import services.explorer.__main__
import services.generation.serving
import services.http.__main__
import services.ledger.__main__
import services.registry.__main__
import services.witness.__main__
import tests.unit.ledger.builders

gc.freeze()  # no fork looks through it for garbage, nor copies the pages for that
gc.enable()
