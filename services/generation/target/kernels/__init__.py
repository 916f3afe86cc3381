"""The kernels of the canonical pass as LLVM IR, and their compilation."""
