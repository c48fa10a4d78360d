"""The parts of assign_layout: which operators suit which layout (roles), the cheapest labelling (minimum_cut), and how an operator is
rewritten for the other layout (rewrite)."""
