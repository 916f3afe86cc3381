"""Services: what they write, how they are, what is wrong with a machine."""
