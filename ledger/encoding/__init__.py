"""Bytes and text as they are hashed and signed: canonical JSON, identifiers, commitments, strict reading of fields."""
