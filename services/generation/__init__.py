"""The generation service: language models behind gRPC, with speculation that cannot change the output."""

import os

# Else transformers advises in each command's output to install torch, which the engine does not need.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
