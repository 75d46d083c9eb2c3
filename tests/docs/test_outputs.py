"""What the pages show is what the commands print: each is run again, and every line shown is looked for.

Latencies, dates, and the spaces between columns may differ. Left out are commands that need a server, a real engine, a
trace that is not in the checkout, or a machine that is not busy.
"""

import re
from pathlib import Path

import pytest
from helpers import Hitlab

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LEFT_OUT = {
    "a server": ("watch ", "serve ", "preflight ", "--base-url"),
    "a real engine": ("--cpu",),
    "a whole trace": ("conversation_trace",),
    "requests that meet by chance": ("lab run concurrency",),
}
_BLOCK = re.compile(r"^```\n(\$ .*?)^```", re.M | re.S)
_COMMAND = re.compile(r"^\$ python run\.py ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n?)*)", re.M)


def shown() -> list[tuple[str, str, str]]:
    """(page, command, output) of each example in the order of the page."""
    return [
        (page.relative_to(ROOT).as_posix(), re.sub(r"\\\n\s*", "", command), output)
        for page in PAGES
        for block in _BLOCK.findall(page.read_text())
        for command, output in _COMMAND.findall(block)
        if not any(part in command for parts in LEFT_OUT.values() for part in parts)
    ]


def lines(output: str) -> list[str]:
    """Its lines without what differs from run to run: names by date, medians of latencies, spaces."""
    output = re.sub(r"\d{8}T\d{6}\b", "DATE", output)
    output = re.sub(r"^( [a-z]+(?: \d)? +\d+ .* )[\d.]+( +[\d,]+ *)$", r"\1MS\2", output, flags=re.M)
    return [" ".join(line.split()) for line in output.splitlines() if line.strip()]


def test_most_examples_are_run_again() -> None:
    assert len(shown()) >= 15
    assert {page for page, _, _ in shown()} >= {"README.md", "docs/measure.md", "docs/traces.md", "docs/labs.md"}


@pytest.mark.parametrize("page", sorted({page for page, _, _ in shown()}))
def test_a_page_shows_what_its_commands_print(
    hitlab: Hitlab, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("examples", "tests", "results/reference"):
        link = tmp_path / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(root / name)
    wrong = []
    for _, command, output in (example for example in shown() if example[0] == page):
        ran = hitlab(*command.split())
        printed = lines(ran.out + ran.err)
        wrong += [f"{command}: {line}" for line in lines(output) if line not in printed]
    assert wrong == []
