"""Places for a whole gang."""
