"""The layer between the wire and a servicer: decoding, limits, errors, paging."""
