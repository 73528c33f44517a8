"""What people are told of a gang: Events, annotations, messages of gangs that wait."""
