"""Requests of Spec-Bench's six kinds: kolm's methods beside off, and peers beside their own plain decoding."""
