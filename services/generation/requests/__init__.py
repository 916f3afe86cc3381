"""Incoming requests: parsed, checked against quotas, halts and heads, resolved to engine requests."""
