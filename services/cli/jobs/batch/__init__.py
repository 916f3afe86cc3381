"""Requests of a file, in OpenAI's batch format, answered into another."""
