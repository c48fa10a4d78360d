"""Graphs as modules of torch.ao.nn.quantized, which TorchScript keeps: a function for each kind that PyTorch has a quantized kernel for.

Where the kernel is called by aten's operator of float values, the function of writers/ writes it, on quantized tensors. Operators that the
kernels do not take are in float between a dequantize and a quantize, by the functions of writers/ too.
"""
