"""The drill of a halt: a stack of its own whose engine is broken on purpose, so that a person sees what a halt is."""
