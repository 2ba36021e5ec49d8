"""The compiler: from a tensor graph to a program, in stages that each print and can be checked.

simplify -> fuse -> lower -> schedule -> verify -> render and compile (the backend) -> plan and
assemble. `compile_graph` runs them all, unless it finds the program on disk.
"""

from genesis.compiler.compile import compile_graph
from genesis.compiler.options import Options, using
from genesis.compiler.program.program import Output, Program

__all__ = ["Options", "Output", "Program", "compile_graph", "using"]
