"""What people are told of a decision: Events, annotation, wording."""
