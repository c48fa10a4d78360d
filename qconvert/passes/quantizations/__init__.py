"""What the passes between quantizations share: putting activations and weights on other quantizations, what values are reached, and
scales that lose least.

activations.py changes activations, given a function that chooses the quantization of one tensor, and says what values a tensor takes at
all; weights_and_networks.py changes weights, and both. Everything that has to follow does: biases, groups that move the same integers,
graph inputs and outputs, saturation. scales_and_costs.py chooses scales.
"""
