"""Benchmarks on the real stack: every figure is a comparison inside one run, with its spread."""
