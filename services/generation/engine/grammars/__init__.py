"""Structured output: grammars that an output follows, compiled by llguidance, and what drafts know of them."""
