"""What holds of graphs: validation, and what two graphs hold otherwise."""
