"""The canonical forward pass, its key/value cache, and the proof, made at start, that its bits can be relied on."""
