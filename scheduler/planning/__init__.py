"""A plan for a gang, or why there is none: minimum, shortfall, remedies, atomic units."""
