"""EAGLE-3 (Li et al. 2025): a small head on the target's own hidden states drafts for it."""
