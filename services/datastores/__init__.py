"""Building of datastores, apart from serving: documents in, a folder of shards, passages and an index out."""
