"""Files and outputs of other tools, each read by one pure module or refused with line and reason."""
