"""A log that is followed."""
