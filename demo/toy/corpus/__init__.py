"""The four domains the base model is trained on; every builder is seeded and splits into train and held-out."""
