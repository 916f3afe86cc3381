"""The running log: admission, writer, recovery, reading, and the contract of a store."""
