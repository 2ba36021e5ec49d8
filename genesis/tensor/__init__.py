"""`Tensor`: the class, its methods and operators, and how tensors are made."""
