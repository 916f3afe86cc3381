"""Halted methods, and the operators who may resume them."""
