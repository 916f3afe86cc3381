"""Measurements of a loaded target before it serves: whether its bits hold, and what its passes cost."""
