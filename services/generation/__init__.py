"""The generation service: language models over gRPC, with speculation that cannot change the output."""

import os

# Otherwise transformers prints advice to install torch, which the engine does not need.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
