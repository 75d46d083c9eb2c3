"""The shape of the project, held by tests: import direction, families, documentation, the wheel."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from hitlab import families
from hitlab.cli import COMMANDS


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
    from hitlab.client.dialect import Engine

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
    assert (site / "hitlab" / "report" / "report.html").is_file()
    assert installed.isdisjoint({"engines", "workloads", "policies", "labs", "tests", "run.py"})
