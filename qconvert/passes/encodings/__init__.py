"""Encodings and graphs: what finds the places of entries, carries grids on, and puts them into a graph."""
