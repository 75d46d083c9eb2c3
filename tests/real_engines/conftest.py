"""Tests here need an engine's environment, and skip without it."""

# These run inside an engine's own environment, where alone what they import exists.
collect_ignore = ["drive_sglang.py", "drive_vllm.py"]
