"""The pages keep their word: what tools/ writes is up to date, links lead somewhere, commands and options exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_architecture import ROOMS

from hitlab.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("benchmarks", "results", "tests/data")  # whose README.md is a page, too


@pytest.mark.parametrize("tool", ["reference", "schemas"])
def test_what_a_tool_writes_is_up_to_date(root: Path, tool: str) -> None:
    ran = subprocess.run([sys.executable, f"tools/{tool}.py", "--check"], cwd=root, check=False)
    assert ran.returncode == 0, f"run python tools/{tool}.py"


def test_the_reference_has_every_command(root: Path) -> None:
    reference = (root / "docs" / "reference.md").read_text()
    assert [name for name in COMMANDS if f"## `hitlab {name}" not in reference] == []


PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *(ROOT / name / "README.md" for name in FOLDERS))
)


def anchors(text: str) -> set[str]:
    """The names that Markdown viewers give a page's headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), flags=re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading_that_are_there(page: str) -> None:
    file = ROOT / page
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", file.read_text()):
        if re.match(r"\w+:", link):
            continue
        path, _, heading = link.partition("#")
        target = (file.parent / path) if path else file
        if not target.exists() or (heading and heading not in anchors(target.read_text())):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/reference.md"])
def test_every_command_of_a_page_has_the_options_that_it_is_called_with(page: str, root: Path) -> None:
    reference = (root / "docs" / "reference.md").read_text()
    known = {
        section.partition("`")[0]: set(re.findall(r"`(--?[\w-]+)`", section))
        for section in reference.split("\n## `hitlab ")[1:]
    }
    text = (root / page).read_text().replace("\\\n", " ")
    wrong = []
    for line in re.findall(
        r"(?:python run\.py|\bhitlab) ([a-z][^\n`]*)", "\n".join(re.findall(r"^```.*?^```", text, flags=re.M | re.S))
    ):
        words = line.partition("  #")[0].partition(";")[0].split()
        name = next((name for name in (" ".join(words[:2]), words[0]) if name in known), None)
        if name is None:
            continue  # a sentence that mentions hitlab, not a command
        wrong += [f"{name} {word}" for word in words if word.startswith("-") and word not in known[name]]
    assert wrong == []


def test_the_table_of_rooms_is_the_one_that_the_imports_are_held_to(root: Path) -> None:
    text = (root / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([\w, ]*) \| ([\w, ]*) \|$", text, flags=re.M)
    shown = {room: tuple(names.replace(",", "").strip() for names in columns) for room, *columns in rows}
    assert shown == ROOMS, "docs/architecture.md: a row for each room of tests/test_architecture.py, in its words"
    assert list(shown) == list(ROOMS)


def test_every_file_and_protocol_that_the_architecture_points_to_is_there(root: Path) -> None:
    text = (root / "docs" / "architecture.md").read_text()
    names = set(re.findall(r"\b((?:hitlab|engines|workloads|policies|labs|tests)/[\w/.]*\w+(?:\.py|/))", text))
    places = {name for name in names if "NAME" not in name}
    assert len(places) > 15
    assert sorted(place for place in places if not (root / place).exists()) == []
    protocols = re.findall(r"\(`(\w+)` (?:or `\w+` )?in (hitlab/[\w/]+\.py)", text)
    assert len(protocols) >= 6
    assert [name for name, file in protocols if f"class {name}" not in (root / file).read_text()] == []
