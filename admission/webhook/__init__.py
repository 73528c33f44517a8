"""The admission webhook: reviews, tags, refusals, certificates, and the server."""
