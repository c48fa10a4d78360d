"""state_dicts: what PyTorch's files say of a network when they hold no graph."""
