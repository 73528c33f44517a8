"""Facts joined into a snapshot: state from watches, node table, agents' facts, measured layer, isochrone sets."""
