"""What `isochrone` does for people at a terminal."""
