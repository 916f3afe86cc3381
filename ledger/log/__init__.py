"""The running log: admission, the one writer, recovery, reading, and the contract of a store."""
