"""`kolm heads …`: draft heads, from a folder to the registry and back."""
