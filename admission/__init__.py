"""Pod in, tags out; whole gangs held, planned and released."""
