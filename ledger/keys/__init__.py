"""Keys and what they sign: Ed25519, whom a verifier trusts, DSSE envelopes, C2SP signed notes."""
