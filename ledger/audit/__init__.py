"""Checks of a log for any reader: its signatures and rules, the promised replays, its halts."""
