"""The CPU backend: kernels as LLVM IR, programs on a native thread pool."""
