"""Machine code that numba and LLVM make, before anybody asks for it."""
