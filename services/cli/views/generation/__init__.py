"""Completions, batches and chats, as they come and at the end."""
