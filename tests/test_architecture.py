"""The shape of the project, held by tests: import direction, families, documentation, the wheel."""

import ast
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from hitlab import families
from hitlab.client.dialect import load_engine
from hitlab.experiment.steps import load_break

# What each room may import beside tokens, errors and flags, and what of the machine it may touch: a room whose second
# string is empty only computes.
ROOMS = {
    "tokens": ("", ""),
    "errors": ("", ""),
    "flags": ("", ""),
    "arguments": ("", "pathlib"),
    "interruptible": ("", "asyncio"),
    "families": ("", "pathlib"),
    "files": ("", "os pathlib zlib zstandard"),
    "cache": ("", ""),
    "traces": ("files", "pathlib"),
    "experiment": ("families", ""),
    "results": ("files experiment", "pathlib"),
    "client": ("cache files families", "asyncio httpx pathlib time"),
    "servers": ("cache files families", "asyncio gzip httpx os pathlib socket starlette subprocess time uvicorn"),
    "simulation": ("traces files families", "os pathlib time"),
    "measurement": ("client experiment cache results families", "asyncio pathlib time"),
    "recordings": ("measurement experiment client cache files", "gzip pathlib"),
    "report": ("results experiment simulation families files", "pathlib"),
    "engines": ("client cache servers", ""),
    "workloads": ("experiment", ""),
    "labs": ("experiment", ""),
    "policies": ("simulation traces", ""),
}
FAMILIES = ("engines", "workloads", "labs", "policies")
MACHINE = {
    *("asyncio", "gzip", "httpx", "os", "pathlib", "rich", "socket", "starlette", "subprocess", "time"),
    *("typer", "uvicorn", "zlib", "zstandard"),
}
# Files outside hitlab/files/ that open a file to write it by name, and why that is no output of a command.
WRITE_THEMSELVES = {
    "hitlab/servers/cpu/environments.py": "the lock of an environment",
    "hitlab/servers/cpu/processes.py": "the log of a process",
    "hitlab/simulation/sweep_runner.py": "finished points are appended as they come",
    "hitlab/traces/mapped.py": "a temporary folder that workers read",
}


def imports(file: Path) -> Iterator[str]:
    """Dotted names imported anywhere in a file, but for type checking."""
    tree = ast.parse(file.read_text())
    unused = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in unused:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "hitlab":
            yield from (f"hitlab.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def room_of(module: str) -> str:
    """The room of an imported module of ours; empty for the package itself and for anything else."""
    parts = module.split(".")
    if parts[0] in FAMILIES:
        return parts[0]
    return parts[1] if parts[0] == "hitlab" and len(parts) > 1 and not parts[1].startswith("__") else ""


def files_of(root: Path, room: str) -> list[Path]:
    if room in FAMILIES:
        return sorted((root / room).rglob("*.py"))
    folder = root / "hitlab" / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def test_every_module_lies_in_a_room_that_the_table_names(root: Path) -> None:
    found = {path.stem for path in (root / "hitlab").iterdir() if path.is_dir() or path.suffix == ".py"}
    assert found - {"__init__", "__main__", "__pycache__", "api", "cli", "py"} == ROOMS.keys() - set(FAMILIES)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_the_table_allows(root: Path, room: str) -> None:
    allowed = {room, "", "tokens", "errors", "flags", *ROOMS[room][0].split()}
    wrong = [
        f"{file.relative_to(root)} imports {module}"
        for file in files_of(root, room)
        for module in imports(file)
        if room_of(module) not in allowed
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_touches_only_what_the_table_allows_of_the_machine(root: Path, room: str) -> None:
    wrong = [
        f"{file.relative_to(root)} imports {module}"
        for file in files_of(root, room)
        for module in imports(file)
        if module.partition(".")[0] in MACHINE - set(ROOMS[room][1].split())
    ]
    assert wrong == []


def test_only_files_writes_what_a_command_is_asked_to_write(root: Path) -> None:
    writing = re.compile(r"""open\(["'][rbt]*[wax]|\.write_(bytes|text)\(|\bsavefig\([a-z]*path""")
    found = {
        str(file.relative_to(root))
        for folder in ("hitlab", *FAMILIES)
        for file in (root / folder).rglob("*.py")
        if writing.search(file.read_text())
    }
    assert found - {f"hitlab/files/{file.name}" for file in (root / "hitlab" / "files").glob("*.py")} == set(
        WRITE_THEMSELVES
    )


def test_rooms_form_no_circle() -> None:
    below = {room: set(names.split()) for room, (names, _) in ROOMS.items()}
    while below:
        ready = {room for room, names in below.items() if not names & below.keys()}
        assert ready, f"a circle among {sorted(below)}"
        below = {room: names for room, names in below.items() if room not in ready}


def test_no_engine_is_named_in_a_condition_outside_engines(root: Path) -> None:
    named = re.compile(r"""(==|!=|\bin\b)\s*[\[({]?\s*["'](vllm|sglang)["']""", re.IGNORECASE)
    found = [
        f"{file.relative_to(root)}: {line.strip()}"
        for folder in ("hitlab", "workloads", "policies", "labs")
        for file in (root / folder).rglob("*.py")
        for line in file.read_text().splitlines()
        if named.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("name", families.names("engines"))
def test_every_engine_offers_what_the_protocol_asks(name: str) -> None:
    from hitlab.client.dialect import EngineApi

    engine = load_engine(name)
    wanted = {*EngineApi.__annotations__, *(key for key in vars(EngineApi) if not key.startswith("_"))}
    assert {key for key in wanted if not hasattr(engine, key)} == set()
    assert name == engine.NAME


@pytest.mark.parametrize("name", families.names("workloads.breaks"))
def test_every_break_offers_what_the_protocol_asks(name: str) -> None:
    how = load_break(name)
    assert how.SUMMARY and callable(how.steps)


def test_wheel_installed_elsewhere_runs_predict_and_brings_no_generic_name(root: Path, tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, root],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    # What hitlab needs is already on this machine: lend it, so that the test needs no network.
    lent = subprocess.run(
        [sys.executable, "-c", "import typer; print(typer.__path__[0])"], capture_output=True, text=True, check=True
    )
    site = next((tmp_path / "env").glob("lib/python*/site-packages"))
    (site / "lent.pth").write_text(str(Path(lent.stdout.strip()).parent) + "\n")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", "--no-index", wheel],
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    ran = subprocess.run(
        [tmp_path / "env" / "bin" / "hitlab", "predict", "--break-mode", "token", "--break-at", "400"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "32.8125 %" in ran.stdout
    installed = {path.name for path in site.iterdir()}
    assert "hitlab" in installed
    assert (site / "hitlab" / "report" / "report.html").is_file()
    assert installed.isdisjoint({"engines", "workloads", "policies", "labs", "tests", "run.py"})
