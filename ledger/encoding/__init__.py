"""The hashed and signed forms of bytes and text: canonical JSON, identifiers, commitments, strict reading of fields."""
