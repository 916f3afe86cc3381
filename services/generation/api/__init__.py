"""The gRPC service: messages in, runs on the engine, messages out."""
