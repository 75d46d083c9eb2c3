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
from hitlab.cli import COMMANDS

# Each layer may import those before it. Pure modules know no clock, no files, no network, no terminal.
LAYERS = [
    set(names.split())
    for names in (
        "errors types",
        """
        cache compare curve dialect difference emulation exposition formats inspection intervals kvsize lab
        labresult loglines page plan predict prompts queues recipe recording replay reproduce result
        scheduler scrape sequences sweep trace
        """,
        """
        cachedir client emulate environments families grid guard kernels labplot labrun launch logfiles logs
        mapped measure plot preflight processes record report requestfile session settle store traces vocabulary
        watching
        """,
        "cli __main__",
    )
]
IMPURE = {"httpx", "rich", "typer", "time", "os", "pathlib", "socket", "subprocess", "asyncio", "starlette", "uvicorn"}


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


def core_files(root: Path) -> Iterator[tuple[int, Path]]:
    """Core modules with their layer; a package's files belong to the package's."""
    for file in (root / "hitlab").rglob("*.py"):
        name = file.relative_to(root / "hitlab").parts[0].removesuffix(".py")
        if name != "__init__":
            layers = [index for index, names in enumerate(LAYERS) if name in names]
            assert layers, f"say in LAYERS which layer {name} belongs to"
            yield layers[0], file


def layer_of(module: str) -> int | None:
    """The layer of an imported hitlab module; None for anything else."""
    parts = module.split(".")
    if parts[0] != "hitlab" or len(parts) == 1 or parts[1] == "__version__":
        return None
    return next((index for index, layer in enumerate(LAYERS) if parts[1] in layer), None)


def test_imports_point_one_way(root: Path) -> None:
    upward = [
        f"{file.relative_to(root)} imports {module}"
        for layer, file in core_files(root)
        for module in imports(file)
        if (layer_of(module) or 0) > layer
    ]
    assert upward == []


def test_pure_modules_know_no_clock_file_network_or_terminal(root: Path) -> None:
    impure = [
        f"{file.relative_to(root)} imports {module}"
        for layer, file in core_files(root)
        if layer <= 1
        for module in imports(file)
        if module.partition(".")[0] in IMPURE
    ]
    assert impure == []


def test_family_files_import_only_the_pure_core(root: Path) -> None:
    wrong = [
        f"{file.relative_to(root)} imports {module}"
        for family in ("engines", "workloads", "policies", "labs")
        for file in (root / family).rglob("*.py")
        for module in imports(file)
        if (layer_of(module) or 0) > 1 or module.partition(".")[0] in IMPURE
    ]
    assert wrong == []


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


@pytest.mark.parametrize(
    "family", ["engines", "engines.cpu", "engines.emulated", "workloads", "workloads.breaks", "policies", "labs"]
)
def test_every_family_has_members_and_each_loads(family: str) -> None:
    members = families.names(family)
    assert members
    for name in members:
        assert families.load(family, name).__doc__


@pytest.mark.parametrize("name", families.names("engines"))
def test_every_engine_offers_what_the_protocol_asks(name: str) -> None:
    from hitlab.dialect import Engine

    engine = families.load("engines", name)
    wanted = {*Engine.__annotations__, *(key for key in vars(Engine) if not key.startswith("_"))}
    assert {key for key in wanted if not hasattr(engine, key)} == set()
    assert name == engine.NAME


@pytest.mark.parametrize("name", families.names("workloads.breaks"))
def test_every_break_offers_what_the_protocol_asks(name: str) -> None:
    how = families.load("workloads.breaks", name)
    assert how.SUMMARY and how.SCORED and callable(how.steps)


def test_readme_reference_has_every_command_and_option_as_it_is(root: Path) -> None:
    ran = subprocess.run([sys.executable, "docs/reference.py", "--check"], cwd=root, check=False)
    assert ran.returncode == 0, "run python docs/reference.py"
    readme = (root / "README.md").read_text()
    assert [name for name in COMMANDS if f"### `hitlab {name}" not in readme] == []


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
    assert (site / "hitlab" / "templates" / "report.html").is_file()
    assert installed.isdisjoint({"engines", "workloads", "policies", "labs", "tests", "run.py"})
