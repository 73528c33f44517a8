"""The HyperNodes that Isochrone publishes: what they should be, the order of writes, the writing."""
