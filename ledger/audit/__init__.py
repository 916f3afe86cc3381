"""What anybody can hold a log to: its signatures and rules, the promised replays, what was halted."""
