"""The kernels of the canonical pass as LLVM IR, and how they are compiled."""
