"""Encodings and graphs: what finds the places of entries, carries quantizations on, and puts them into a graph."""
