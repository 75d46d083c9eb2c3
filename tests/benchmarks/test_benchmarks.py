"""Every benchmark runs as its README says and prints each ratio; whether a ratio is good is not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RATIOS = {
    "startup": ["predict / import typer, rich"],
    "metrics_page": ["20 MB of lines: read / split", "20 MB of labels: read / split", "54 kB: read / split"],
    "driver": ["measure / bare httpx loop", "whole command / its imports"],
    "replay": ["s3fifo / bare loop", "whole command / import numba"],
    "sweep": ["whole curve / lru replay", "sweep of 10 x 30 / one replay"],
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A hundred requests with some blocks in common."""
    rows = [{"input_length": 2048, "hash_ids": [0, request % 7, 10 + request, 200]} for request in range(100)]
    file = tmp_path / "small.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_every_benchmark_is_run_here_and_told_of_in_the_readme(root: Path) -> None:
    runnable = {file.stem for file in (root / "benchmarks").glob("*.py") if "__main__" in file.read_text()}
    readme = (root / "benchmarks" / "README.md").read_text()
    assert runnable == RATIOS.keys()
    assert [name for name in sorted(runnable) if f"python -m benchmarks.{name}" not in readme] == []


@pytest.mark.parametrize("name", RATIOS)
def test_a_benchmark_runs_on_a_small_input_and_prints_its_ratios_and_the_machine(
    root: Path, trace: Path, name: str
) -> None:
    inputs = [str(trace)] if name in ("replay", "sweep") else []
    ran = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--rounds", "1", *inputs],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    lines = {line[:34].rstrip(): line[34:].split() for line in ran.stdout.splitlines()}
    for ratio in RATIOS[name]:
        float(lines[ratio][0])
    assert "Python" in ran.stdout.splitlines()[-1]
    assert ran.returncode == ("MISSED" in ran.stdout)
