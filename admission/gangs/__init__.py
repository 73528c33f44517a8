"""Batch admission: gangs held, planned, let go and looked after, and everything that makes one wait."""
