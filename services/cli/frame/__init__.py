"""Parts of every command: the tree of commands, options, errors, output."""
