"""Keys and signatures: Ed25519, the keys that a verifier trusts, DSSE envelopes, C2SP signed notes."""
