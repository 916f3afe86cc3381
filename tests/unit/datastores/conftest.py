"""Fixtures of the tests of builds."""

from __future__ import annotations

from tests.fakes.tiny_model import tiny_model

__all__ = ["tiny_model"]
