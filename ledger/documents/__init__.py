"""The documents that the log takes, and the manifests that they refer to."""
