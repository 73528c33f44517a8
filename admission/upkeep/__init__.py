"""Stuck pods, PodGroup garbage collection, minResources of gangs that run."""
