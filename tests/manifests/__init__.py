"""Tests of the chart and of what the docs promise."""
