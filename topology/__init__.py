"""Ground floor: what the cluster is. Imports nothing of ours."""
