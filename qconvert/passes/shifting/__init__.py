"""What shift_to_symmetric does, by what an operator is: shifted_graph.py has what all share."""
