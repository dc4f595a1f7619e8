"""How a process learns which rank it is, and how the ranks of a job meet."""
