"""A generation server and its ledger under the load of many callers, as processes, over gRPC."""
