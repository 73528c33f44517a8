"""Cards: what pods ask of them, what nodes have, what is held, and which go together."""
