"""Machines and networks as graphs: built, explained in words, and as arrays for scoring."""
