"""Servers draft from their first request on."""

from tests.integration.conftest import compiled_copies as compiled_copies
