"""A real Kubernetes with Volcano on loopback: built from source, started as plain processes, gone without a trace."""
