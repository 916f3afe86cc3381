"""Requests of Spec-Bench's six kinds: kolm's methods compared with off."""
