"""A request as it comes in: read, checked by quotas, halts and heads, resolved to what the engine runs."""
