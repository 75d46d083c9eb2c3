"""How each real engine is installed and started on a machine without a GPU, one engine per file."""
