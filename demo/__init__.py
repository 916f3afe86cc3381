"""The main job on a real model, its head and datastore, and a small model for tests."""
