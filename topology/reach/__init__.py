"""Reach: domains, what a link costs, the model between two nodes, and the isochrone sets."""
