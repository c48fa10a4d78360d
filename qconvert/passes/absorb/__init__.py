"""The walk of absorb_quantization over the operators, and its conditions."""
