"""Fixtures of the tests of builds."""

from tests.fakes.tiny_model import tiny_model

__all__ = ["tiny_model"]
