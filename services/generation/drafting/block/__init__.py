"""Block drafters (DFlash, DSpark): a few layers over the target's hidden states draft a block of tokens in one pass."""
