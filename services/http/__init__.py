"""The HTTP front: OpenAI's API over a generation server, of which it is a client."""
