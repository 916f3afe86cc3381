"""Halts, their resumption, and a drill of both."""
