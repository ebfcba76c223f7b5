"""Network topology: which nodes lie close together, and how gangs are kept within one such domain."""
