"""Which engine can run on a CPU, and how: one recipe per file."""
