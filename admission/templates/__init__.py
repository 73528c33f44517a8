"""The pods that a manifest would become: documents, workloads, and the kinds of serving operators."""
