"""Models by name: short names, repositories of a hub, and models of other programs on this machine."""
