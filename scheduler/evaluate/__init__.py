"""One pod on all nodes: filter, score, GPU fit, reach to partners, placement cost, capacity."""
