"""Checks that anybody can make of a log: its signatures and rules, the promised replays, its halts."""
