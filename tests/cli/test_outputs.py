"""Every option that names a file to write obeys the rule of outputs (tests/files/test_outputs.py), before any work."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import typer
from helpers import Hitlab, Ran
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hitlab.cache.sizes import CacheSizes
from hitlab.cli import COMMANDS, _points, build_app
from hitlab.errors import InputError
from hitlab.files import outputs
from hitlab.servers.emulated import server as emulate
from hitlab.simulation import request_file
from hitlab.simulation.sweep import Point

TRACE = b"".join(
    json.dumps({"timestamp": at, "input_length": 1024, "hash_ids": [at % 3, 9]}).encode() + b"\n" for at in range(40)
)


@dataclass(frozen=True)
class Writer:
    """One way in which hitlab is asked to write a file; `{}` in an argument is the folder of its input."""

    command: str
    option: str
    ending: str
    kind: str
    source: str = ""  # the input
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.command} {self.option} {self.ending} {' '.join(self.arguments[-2:])}"


TO_SWEEP = ("--policy", "lru,fifo", "--capacity", "2,3", "--json")
TO_RECORD = ("--engine", "vllm", "--sequences", "1", "--requests", "3")
WRITERS = [
    Writer("sweep", "--csv", ".csv", "points", "trace.jsonl", TO_SWEEP),
    Writer("sweep", "--csv", ".csv", "points", "trace.jsonl", (*TO_SWEEP, "--bytes-per-token", "8")),
    *(Writer("sweep", "--plot", each, each, "trace.jsonl", TO_SWEEP) for each in (".svg", ".png", ".pdf")),
    *(Writer("sweep", "--requests-out", each, each, "trace.jsonl", TO_SWEEP) for each in (".jsonl", ".parquet")),
    *(
        Writer("replay", "--requests-out", each, each, "trace.jsonl", ("--policy", "lru", "--capacity", "2", "--json"))
        for each in (".jsonl", ".parquet")
    ),
    *(Writer("record", "--out", each, "recording", "", TO_RECORD) for each in (".json", ".json.gz")),
    Writer("report", "--out", ".html", "report", "run.json"),
]
Ask = Callable[..., Ran]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with emulate.start("vllm", emulate.settings("vllm", CacheSizes(capacity_blocks=64))) as server:
        yield server.base_url


@pytest.fixture
def ask(hitlab: Hitlab, root: Path, url: str) -> Ask:
    """Have a writer write to a path, with its input beside it."""
    kept = (root / "results" / "reference" / "20261130T000000-vllm-capacity.json").read_bytes()

    def run(writer: Writer, path: Path, *more: object) -> Ran:
        place_inputs(path.parent, kept)
        source = [path.parent / writer.source] if writer.source else ["--base-url", url]
        more = (*more, "--out", path.parent / "results") if writer.command == "sweep" else more
        return hitlab(writer.command, *source, *writer.arguments, writer.option, path, *more)

    return run


def place_inputs(folder: Path, kept: bytes = b"{}") -> None:
    for name, content in (("trace.jsonl", TRACE), ("run.json", kept)):
        if not (folder / name).exists():
            (folder / name).write_bytes(content)


def linked(kind: str, file: Path, name: str) -> Path:
    """Another name of a file, in the same folder."""
    link = file.with_name(name)
    if kind == "soft":
        link.symlink_to(file)
    elif kind == "hard":
        link.hardlink_to(file)
    return file if kind == "same" else link


def test_table_of_writers_has_every_option_that_names_a_file_to_write() -> None:
    group: Any = typer.main.get_command(build_app(COMMANDS))
    read_or_folders = {"--log", "--work-folder", "--folder"}

    def options(name: str, command: Any) -> Iterator[tuple[str, str, bool]]:
        for child, below in getattr(command, "commands", {}).items():
            yield from options(f"{name} {child}", below)
        named = [each.opts[0] for each in command.params if type(each.type).__name__ == "TyperPath"]
        named += [each.opts[0] for each in command.params if type(each.type).__name__ == "Path"]
        for option in sorted({each for each in named if each.startswith("--")} - read_or_folders):
            yield name, option, any("--force" in each.opts for each in command.params)

    found = {each for name in COMMANDS for each in options(name, group.commands[name])}
    to_folders = {("measure", "--out", False), ("lab run", "--out", False), ("sweep", "--out", True)}
    assert found >= to_folders
    assert found - to_folders == {(each.command, each.option, True) for each in WRITERS}


@pytest.mark.parametrize("writer", WRITERS, ids=str)
def test_what_hitlab_wrote_it_overwrites_with_the_same_kind_of_output_and_no_other(
    ask: Ask, tmp_path: Path, writer: Writer
) -> None:
    file = tmp_path / f"file{writer.ending}"
    for _ in range(2):
        assert (ask(writer, file).status, file.stat().st_size > 0) == (0, True)
    written = file.read_bytes()
    for other in WRITERS:
        if other.kind != writer.kind:
            place = tmp_path / f"another{other.ending}"
            place.write_bytes(written)
            ran = ask(other, place)
            assert (ran.status, "exists and is not" in ran.err, place.read_bytes()) == (1, True, written)


FOREIGN = [b"a", b"policy,capacity_blocks\nmine,1\n", b"{}\n", b'{"engine":"mine"}', b"<svg>drawn by hand</svg>", TRACE]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    writer=st.sampled_from(WRITERS),
    content=st.sampled_from(FOREIGN) | st.binary(min_size=1, max_size=40),
    link=st.sampled_from(["same", "soft", "hard"]),
)
def test_without_force_a_foreign_file_stays_as_it_is_and_nothing_is_done(
    ask: Ask, writer: Writer, content: bytes, link: str
) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"foreign{writer.ending}"
        file.write_bytes(content)
        path = linked(link, file, f"link{writer.ending}")
        place_inputs(file.parent)
        before = sorted(file.parent.iterdir())
        ran = ask(writer, path)
        assert (ran.status, ran.out, ran.err.count("\n"), file.read_bytes()) == (1, "", 1, content)
        assert ran.err.endswith("--force\n")
        assert sorted(file.parent.iterdir()) == before


@pytest.mark.parametrize("writer", WRITERS, ids=str)
@pytest.mark.parametrize("link", ["same", "soft", "hard"])
def test_with_force_a_foreign_file_is_overwritten(ask: Ask, tmp_path: Path, writer: Writer, link: str) -> None:
    file = tmp_path / f"foreign{writer.ending}"
    file.write_bytes(b"foreign")
    path = linked(link, file, f"link{writer.ending}")
    assert ask(writer, path, "--force").status == 0
    assert (path.read_bytes() != b"foreign", path.is_symlink()) == (True, link == "soft")
    assert ask(writer, path).status == 0  # it is hitlab's now


@pytest.mark.parametrize("writer", [each for each in WRITERS if each.source], ids=str)
@pytest.mark.parametrize("link", ["same", "soft", "hard"])
@pytest.mark.parametrize("force", [(), ("--force",)])
def test_input_is_never_the_output(ask: Ask, tmp_path: Path, writer: Writer, link: str, force: tuple[str, ...]) -> None:
    place_inputs(tmp_path)
    source = tmp_path / writer.source
    before = source.read_bytes()
    ran = ask(writer, linked(link, source, f"link{writer.ending}"), *force)
    assert (ran.status, ran.out, source.read_bytes()) == (2, "", before)
    # An input's own name may be refused already for its ending.
    assert "is the input" in ran.err or (link == "same" and "ends in n" in ran.err)


@pytest.mark.parametrize("writer", WRITERS, ids=str)
def test_failure_while_writing_leaves_the_old_file(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: Writer
) -> None:
    file = tmp_path / f"file{writer.ending}"
    assert ask(writer, file).status == 0
    before, names = file.read_bytes(), sorted(tmp_path.iterdir())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hitlab.files.writing._finish", full)
    monkeypatch.setattr("hitlab.files.outputs.try_folder", lambda folder: None)
    ran = ask(writer, file)
    assert (ran.status, file.read_bytes(), sorted(tmp_path.iterdir())) == (1, before, names)
    assert ran.err.endswith(f"{file}: can't be written: No space left on device; name another file\n")


@pytest.mark.parametrize("writer", WRITERS, ids=str)
@pytest.mark.parametrize("force", [(), ("--force",)])
def test_file_that_is_put_in_an_outputs_place_during_the_work_is_kept_and_one_line_says_so(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: Writer, force: tuple[str, ...]
) -> None:
    checked = outputs._check_place

    def changed_after(path: Path) -> None:
        checked(path)
        path.write_bytes(b"notes")

    monkeypatch.setattr(outputs, "_check_place", changed_after)
    file, beside = (tmp_path / f"{name}{writer.ending}" for name in ("file", "file-2"))
    ran = ask(writer, file, *force)
    assert (ran.status, file.read_bytes(), beside.stat().st_size > 0) == (0, b"notes", True)
    said = [line for line in (ran.out + ran.err).splitlines() if f"{beside}, as {file} was changed" in line]
    assert len(said) == 1
    monkeypatch.undo()
    assert ask(writer, beside).status == 0  # it is one of ours


def test_two_outputs_of_a_sweep_that_are_one_file_are_a_usage_error(ask: Ask, tmp_path: Path) -> None:
    ran = ask(WRITERS[0], tmp_path / "a.jsonl", "--requests-out", f"{tmp_path}/./a.jsonl")
    assert (ran.status, ran.out) == (2, "")
    assert "is also the file of --csv" in ran.err
    assert not (tmp_path / "a.jsonl").exists()


def test_table_of_points_that_somebody_went_on_with_is_not_hitlabs_any_more(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "points.csv"
    ask(WRITERS[0], file)
    written = file.read_bytes()
    for more in (b"a note\n", written, b"lru,1\n", b"\xff\n"):
        file.write_bytes(written + more)
        assert (ask(WRITERS[0], file).status, file.read_bytes()) == (1, written + more)


ROW = ["lru", "2", "2", "10240", "40960", "0.25", "0.25", "5120", "20480", "0.25", "0.25"]


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        *((column, "") for column in range(11)),
        *((column, "1.0") for column in (1, 2, 3, 4, 7, 8)),
        *((column, cell) for column in (5, 6, 9, 10) for cell in ("0.250", "-0.25", "25", "nan", ".25")),
        (0, "mine"),
        (0, "LRU"),
        (0, "mine: with a note"),
        (3, "note"),
        (1, "0"),
        (10, "0.25,7"),
    ],
)
def test_table_with_a_row_that_hitlab_would_not_write_is_not_hitlabs(tmp_path: Path, column: int, cell: str) -> None:
    file = tmp_path / "points.csv"
    for row, ours in ((ROW, True), ([*ROW[:column], cell, *ROW[column + 1 :]], False)):
        file.write_text("\r\n".join([",".join(_points._columns()), ",".join(ROW), ",".join(row), ""]))
        if ours:
            assert _points.wrote(file)
        else:
            with pytest.raises(InputError, match="exists and is not a table of points"):
                outputs.claim([outputs.Output("--csv", file, "a table of points", _points.wrote)])


def test_table_of_a_trace_without_tokens_has_empty_rates_and_is_hitlabs(tmp_path: Path) -> None:
    file = tmp_path / "points.csv"
    _points.write([Point("s3fifo:max_freq=1", 10, 0, 0, 0, None, None, 0, 0, None, None)], file, 8)
    assert _points.wrote(file)
    file.write_text(file.read_text().replace(",,", ",0.0,", 1))
    assert not _points.wrote(file)


LINE = b'{"policy":"lru","capacity_blocks":2,"hit_tokens":0,"prompt_tokens":9}\n'


@pytest.mark.parametrize(
    "foreign",
    [
        b"a note\n",
        b"\n",
        b'{"hit_tokens":0,"prompt_tokens":9,"note":"mine"}\n',
        b'{"hit_tokens": 0, "prompt_tokens": 9}\n',
        b'{"hit_tokens":"0","prompt_tokens":9}\n',
        b'{"hit_tokens":0,"prompt_tokens":9}\r\n',
        b'{"policy":"","capacity_blocks":2,"hit_tokens":0,"prompt_tokens":9}\n',
        b'{"hit_tokens":0,"prompt_tokens":9} {"hit_tokens":0,"prompt_tokens":9}\n',
    ],
)
def test_requests_with_a_foreign_line_among_them_are_not_hitlabs(tmp_path: Path, foreign: bytes) -> None:
    file = tmp_path / "requests.jsonl"
    for at in range(4):
        lines = [LINE] * 3
        file.write_bytes(b"".join(lines))
        assert request_file.wrote(file)
        lines.insert(at, foreign)
        file.write_bytes(b"".join(lines))
        assert not request_file.wrote(file)
    file.write_bytes(LINE + LINE[:-1])
    assert not request_file.wrote(file)


def test_requests_that_are_too_many_to_read_are_known_by_first_and_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_file, "_WHOLE_BYTES", 100)
    file = tmp_path / "requests.jsonl"
    for lines, ours in (([LINE, b"x\n", LINE], True), ([b"x\n", LINE, LINE], False), ([LINE, LINE, b"x\n"], False)):
        file.write_bytes(b"".join(lines))
        assert request_file.wrote(file) == ours


def test_pictures_of_a_lab_replace_no_file(hitlab: Hitlab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hitlab.results.store._moment", lambda started_utc: "20261130T000000")
    lab = ("lab", "run", "hit-rate", "--engine", "vllm", "--emulate", "--quick", "--out", tmp_path)
    assert hitlab(*lab).status == 0
    (tmp_path / "20261130T000000-lab-hit-rate-vllm-EMULATED.json").unlink()
    drawn = list(tmp_path.iterdir())
    assert len(drawn) == 2
    for path in drawn:
        path.write_bytes(b"and drawn on")
    assert hitlab(*lab).status == 0
    assert {path.read_bytes() for path in drawn} == {b"and drawn on"}
    assert {path.suffix for path in tmp_path.iterdir() if path.stem.endswith("-2")} == {".json", ".svg", ".png"}


def test_report_may_lie_among_the_results_it_shows(hitlab: Hitlab, root: Path, tmp_path: Path) -> None:
    kept = root / "results" / "reference" / "20261130T000000-vllm-capacity.json"
    result = tmp_path / kept.name
    result.write_bytes(kept.read_bytes())
    for _ in range(2):
        assert hitlab("report", tmp_path, "-o", tmp_path / "report.html").status == 0
    assert hitlab("report", tmp_path, "-o", result, "--force").status == 2
    assert result.read_bytes() == kept.read_bytes()


def test_ending_that_no_picture_has_is_a_usage_error_before_the_work(ask: Ask, tmp_path: Path) -> None:
    for name in ("curves", "curves.txt"):
        ran = ask(WRITERS[2], tmp_path / name)
        assert (ran.status, ran.out, "ends in no form of picture" in ran.err) == (2, "", True)
