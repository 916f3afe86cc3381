"""Structured output: every method beside off under the same schemas."""
