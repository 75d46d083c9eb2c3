"""Tests here need the engines' environments: they skip without, or make them with HITLAB_INSTALL_ENGINES=1."""

import os

import pytest

from hitlab import families
from hitlab.servers.cpu.environments import environment
from hitlab.servers.cpu.recipe import load_cpu_recipe
from hitlab.servers.progress import Silent

# These run inside an engine's own environment, where alone what they import exists.
collect_ignore = ["drive_sglang.py", "drive_vllm.py"]


@pytest.fixture(scope="session", autouse=True)
def environments() -> None:
    """Make what is missing, where that was asked for: gigabytes and minutes nobody should be surprised by."""
    if os.environ.get("HITLAB_INSTALL_ENGINES") == "1":
        for name in families.names("engines.cpu"):
            with environment(load_cpu_recipe(name), Silent()):
                pass
