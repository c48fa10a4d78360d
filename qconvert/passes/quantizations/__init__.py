"""What the passes between quantizations share: putting activations and weights with other quantizations, what values are reached, and
scales that lose least.

activations.py and weights.py change a graph, given a function that chooses the quantization of one tensor, and network.py does both;
everything that has to follow does: biases, groups that move the same integers, graph inputs and outputs, saturation. fitting.py chooses
scales, activations.py says what values a tensor takes at all, options.py what a user may choose.
"""
