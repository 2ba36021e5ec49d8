"""Elementary functions as vector arithmetic in LLVM IR: no calls of a mathematics library."""
