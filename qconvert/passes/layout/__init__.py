"""The parts of assign_layout: which layouts an operator suits and how it is written for the other one (operators.py), and the cheapest
labelling (minimum_cut.py)."""
