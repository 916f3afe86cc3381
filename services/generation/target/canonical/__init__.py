"""The canonical pass: the programs of `docs/numerics.md` as machine code, made with LLVM for the CPU at hand."""
