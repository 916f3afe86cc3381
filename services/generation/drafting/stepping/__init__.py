"""Heads that draft a token at a time (EAGLE-3, MTP): their passes over entries, and how they expand draft trees."""
