"""The client of a generation server: requests, answers, and how both are checked."""
