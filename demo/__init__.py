"""The main job on a real model, its head and datastore, and a small model for tests."""

FAULT = "fault"
"""The file in the state folder of `demo.faulty_server` that switches its fault on."""
