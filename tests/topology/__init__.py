"""Tests of topology."""
