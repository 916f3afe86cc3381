"""Building of datastores, beside the serving path: documents in, a folder of shards, passages and an index out."""
