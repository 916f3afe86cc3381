"""Moving to the method that pays (ADRs 0022, 0030, 0038)."""
