"""Room that no pod can use: the mix of pods, the shapes they come in, and the measures over both."""
