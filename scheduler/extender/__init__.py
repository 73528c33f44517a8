"""Volcano's HTTP calls."""
