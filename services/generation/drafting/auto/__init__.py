"""Moving to the method that pays (ADR 0022)."""
