"""Moving to the method that pays (ADRs 0022, 0030)."""
