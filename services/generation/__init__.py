"""The generation service: language models behind gRPC, with speculation that cannot change the output."""
