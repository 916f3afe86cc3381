"""A request as it comes in: read, checked, resolved to what the engine runs."""
