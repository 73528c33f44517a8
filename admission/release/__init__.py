"""Writes to pods and PodGroups."""
