"""The API server: a thin client, the informer, Events, and what is kept of watched pods."""
