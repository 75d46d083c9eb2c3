"""Real engines, installed and started on a machine without a GPU."""
