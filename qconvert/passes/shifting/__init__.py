"""What shift_to_symmetric does, by what an operator is: walk.py has what all share."""
