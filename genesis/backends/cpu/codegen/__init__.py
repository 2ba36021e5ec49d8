"""From kernel IR to LLVM IR: vector lanes, memory accesses, instructions."""
