"""An authority of our own: what it signs, when that is replaced, where it is kept."""
