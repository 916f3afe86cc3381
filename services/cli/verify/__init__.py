"""Offline verification of what somebody was given."""
