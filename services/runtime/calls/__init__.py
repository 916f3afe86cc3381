"""What stands between the wire and a servicer: decoding, limits, errors, paging."""
