"""Measured reach: values, their store and file, probes in turn, and the layer over the model."""
