"""The conformance matrix: one example of each kind of operator, tried in every type and target."""
