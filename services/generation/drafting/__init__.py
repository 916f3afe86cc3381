"""Drafters, one file a method. A drafter only proposes: whatever it does, the output stays the same."""
