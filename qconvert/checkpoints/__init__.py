"""Checkpoints of language models: the weights of linear layers in blocks, as each tool stores them, without operators.

A layer has several tensors instead of one `weight`: packed integers, scales and zero points of blocks along the inputs. A Container says
how one tool does that; between them stands BlockWeight, with every integer, scale and zero point as it is stored.
"""
