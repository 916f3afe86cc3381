"""Models by name: short names, repositories of a hub, and what other programs have left on this machine."""
