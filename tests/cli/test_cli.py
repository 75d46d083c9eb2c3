"""What a person or a script meets on the command line."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from helpers import Hitlab

from hitlab.cli import COMMANDS, build_app
from hitlab.errors import UsageError
from hitlab.servers.emulated import server


def test_predict_prints_the_worked_case(hitlab: Hitlab) -> None:
    ran = hitlab("predict", "--prefix-len", 1000, "--block-size", 16)
    assert ran.status == 0
    assert "81.3750 %  62,496 of 76,800 prompt tokens (cold + warm)" in ran.out
    assert "8 of 1,000 tokens stranded" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_predict_json_has_the_keys_scripts_read(hitlab: Hitlab) -> None:
    document = json.loads(hitlab("predict", "--json").out)
    assert document["hit_tokens"] == 62_496
    assert document["prompt_tokens"] == 76_800
    assert document["hit_rate"] == 0.81375
    assert document["matchable_prefix_tokens"] == 992
    assert document["stranded_tokens"] == 8
    assert round(document["cold_start_points"], 3) == 1.302
    assert round(document["granularity_points"], 3) == 0.656


def test_predict_says_below_one_block(hitlab: Hitlab) -> None:
    ran = hitlab("predict", "--prefix-len", 12, "--suffix-len", 500)
    assert "below one block: 0 by arithmetic" in ran.out


def test_predict_takes_the_engines_own_block_size(hitlab: Hitlab) -> None:
    assert json.loads(hitlab("predict", "--engine", "sglang", "--json").out)["hit_tokens"] == 63_000


def test_predict_of_a_break_is_about_the_broken_pass(hitlab: Hitlab) -> None:
    document = json.loads(hitlab("predict", "--break-mode", "token", "--break-at", 400, "--json").out)
    assert document["hit_rate"] == 0.328125
    assert [phase["name"] for phase in document["phases"]] == ["cold", "warm", "break", "repeat"]


def test_check_agrees_with_every_page_value(hitlab: Hitlab) -> None:
    ran = hitlab("check")
    assert ran.status == 0
    assert "31 of 31 values agree" in ran.out
    assert json.loads(hitlab("check", "--json").out)["differ"] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["predict", "--prefix-len", "x"], "'x' is not a valid"),
        (["predict", "--requests", "0"], "--requests is 0; give 1 or more"),
        (["predict", "--break-mode", "salty"], "choose from burst, capacity, none, salt, token"),
        (["predict", "--engine", "tgi"], "choose from sglang, vllm"),
        (["predict", "--break-mode", "token", "--break-at", "1000"], "outside the prefix"),
        (["predictt"], "No such command 'predictt'"),
        (["predict", "--no-such-option"], "No such option"),
        (["serve", "--engine", "vllm", "--emulate", "--port", "-1"], "'--port'"),
        (["serve", "--engine", "vllm", "--emulate", "--port", "70000"], "'--port'"),
        (["serve", "--engine", "vllm", "--emulate", "--dp", "0"], "'--dp'"),
        (["serve", "--engine", "vllm", "--emulate", "--capacity-blocks", "0"], "'--capacity-blocks'"),
        (["serve", "--engine", "vllm", "--emulate", "--engine-arg=--seed"], "--engine-arg is for --cpu"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(hitlab: Hitlab, arguments: list[str], says: str) -> None:
    ran = hitlab(*arguments)
    assert ran.status == 2
    assert ran.out == ""
    assert says in ran.err
    assert ran.err.startswith("hitlab: ")
    assert ran.err.count("\n") == 1


EMPTY = {
    "TRACE": ("replay TRACE --capacity 9", "sweep TRACE", "trace info TRACE"),
    "RESULTS": ("report RESULTS", "report . RESULTS"),
    "RECORDING": ("model RECORDING",),
    "FILE": ("log FILE --engine vllm",),
    "--folder": ("results list --folder FOLDER", "results show x --folder FOLDER", "results diff x y --folder FOLDER"),
    "--out": (
        "report . --out OUT",
        "record --engine vllm --emulate --out OUT",
        "measure --engine vllm --emulate --out OUT",
        "lab run recovery --engine vllm --emulate --out OUT",
        "sweep x --out OUT",
    ),
    "--log": ("measure --engine vllm --log LOG", "lab run recovery --engine vllm --log LOG"),
    "--csv": ("sweep x --csv CSV",),
    "--plot": ("sweep x --plot PLOT",),
    "--requests-out": ("sweep x --requests-out REQUESTS", "replay x --capacity 9 --requests-out REQUESTS"),
    "--work-folder": ("sweep x --work-folder FOLDER",),
}


@pytest.mark.parametrize(("name", "said"), [(name, said) for name, each in EMPTY.items() for said in each])
def test_empty_path_is_wrong_usage_and_never_the_current_folder(hitlab: Hitlab, name: str, said: str) -> None:
    ran = hitlab(
        *(
            "" if each in "TRACE RESULTS RECORDING FILE FOLDER OUT LOG CSV PLOT REQUESTS" else each
            for each in said.split()
        )
    )
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(f"hitlab: {name} is empty; name a file")


def test_every_path_of_the_command_line_is_among_them() -> None:
    group: Any = typer.main.get_command(build_app(COMMANDS))

    def paths(name: str, command: Any) -> Iterator[str]:
        for child, below in getattr(command, "commands", {}).items():
            yield from paths(f"{name} {child}".strip(), below)
        for each in command.params:
            if type(each.type).__name__ in ("TyperPath", "Path", "FuncParamType"):
                yield f"{name} {each.opts[0] if each.opts[0].startswith('-') else each.name.upper()}"

    for path in paths("", group):
        command, _, name = path.rpartition(" ")
        assert any(said.startswith(command) for said in EMPTY[name]), path


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(hitlab: Hitlab, command: str) -> None:
    ran = hitlab(command, "--help")
    assert ran.status == 0
    assert "Example: hitlab " + command in " ".join(ran.out.split())


def test_version_is_printed(hitlab: Hitlab) -> None:
    from hitlab import __version__

    assert hitlab("--version").out == f"hitlab {__version__}\n"


def test_predict_imports_nothing_heavy(root: Path) -> None:
    heavy = {"numpy", "numba", "httpx", "rich", "starlette", "uvicorn", "prometheus_client", "pydantic", "asyncio"}
    heavy |= {"hitlab.client.dialect"}  # which alone takes a third of what predict may
    script = (
        "import sys\n"
        "from hitlab.cli import main\n"
        "try: main(['predict'])\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert heavy & set(ran.stderr.split()) == set()


def test_run_py_is_the_command_line(root: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "run.py", "predict", "--json"], cwd=root, capture_output=True, text=True, check=True
    )
    assert json.loads(ran.stdout)["hit_tokens"] == 62_496


def in_a_process(root: Path, *command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], cwd=root, stderr=subprocess.PIPE, text=True, check=False, **options
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
@pytest.mark.parametrize("arguments", [["predict", "--json"], ["predict"], ["check"], ["predict", "--help"]])
def test_output_that_can_not_be_written_is_one_line(root: Path, arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        ran = in_a_process(root, sys.executable, "run.py", *arguments, stdout=full)
    assert (ran.returncode, ran.stderr) == (1, "hitlab: the output can't be written: No space left on device\n")


def test_reader_that_leaves_hears_nothing(root: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as gone:
        assert in_a_process(root, sys.executable, "run.py", "predict", "--json", stdout=gone).stderr == ""


@pytest.mark.parametrize("entry", [["run.py"], ["-m", "hitlab"]])
def test_ctrl_c_during_the_imports_is_one_line(root: Path, tmp_path: Path, entry: list[str]) -> None:
    # A typer that is interrupted while it is being imported.
    (tmp_path / "typer.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = in_a_process(root, sys.executable, *entry, "predict", env=environment)
    assert (ran.returncode, ran.stderr) == (130, "hitlab: interrupted\n")


def test_python_without_the_dependencies_is_one_line(root: Path) -> None:
    ran = in_a_process(root, sys.executable, "-S", "run.py", "predict", env={"PATH": os.environ["PATH"]})
    assert ran.returncode == 1
    assert ran.stderr.startswith("hitlab: typer is missing here; use the environment")
    assert ran.stderr.count("\n") == 1


def test_deeply_nested_recording_is_one_line(hitlab: Hitlab, tmp_path: Path) -> None:
    nested = tmp_path / "deep.json"
    nested.write_text('{"engine": "vllm", "more": ' + "[" * 200_000)
    ran = hitlab("model", nested)
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert "not a recording" in ran.err


def test_port_that_there_is_none_of_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no port 70000"):
        server.listen("127.0.0.1", 70_000)
