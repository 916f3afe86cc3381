"""What every command stands on: the tree of commands, options, errors, output."""
