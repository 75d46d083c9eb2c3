"""Result files: whole, never over another, and without keys."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from hitlab.errors import InputError
from hitlab.experiment.plan import Experiment
from hitlab.experiment.shape import SharedPrefix
from hitlab.results import store
from hitlab.results.run_result import EngineInfo, Result


def result(source: str = "real", complete: bool = True) -> Result:
    return Result(
        schema_version=1,
        hitlab_version="0",
        started_utc="2026-11-29T23:01:43+00:00",
        engine=EngineInfo(
            name="vllm",
            title="vLLM",
            version="0.32.0",
            model="tiny",
            base_url="http://h:8000",
            block_tokens=16,
            capacity_blocks=2047,
            data_parallel_ranks=1,
            source=source,
        ),
        experiment=Experiment(SharedPrefix(64, 1000, 200), "capacity"),
        phases=[],
        checks=[],
        complete=complete,
        valid=True,
        agrees=True,
        verdict="healthy",
        explanation="",
        notes=[],
        seed=0,
        counters_before={},
        counters_after={},
    )


def test_result_is_read_back_as_it_was(tmp_path: Path) -> None:
    path = store.save(result(), tmp_path)
    assert path.name == "20261129T230143-vllm-capacity.json"
    assert msgspec.json.decode(path.read_bytes(), type=Result) == result()


def test_second_result_of_the_same_second_gets_its_own_file(tmp_path: Path) -> None:
    first, second = store.save(result(), tmp_path), store.save(result(), tmp_path)
    assert first != second
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([first.name, second.name])


def test_emulated_and_incomplete_runs_say_so_in_their_name(tmp_path: Path) -> None:
    path = store.save(result("emulated", complete=False), tmp_path)
    assert path.name == "20261129T230143-vllm-capacity-EMULATED-incomplete.json"


def test_place_that_can_not_be_written_is_found_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="--out"):
        store.make_ready(tmp_path / "file" / "results")


def test_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hitlab.results.store.os.fsync", full)
    with pytest.raises(InputError, match="No space left"):
        store.save(result(), tmp_path)
    assert list(tmp_path.iterdir()) == []


@contextmanager
def full_disk() -> Iterator[None]:
    """Files that can be made and take no byte, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_is_found_before_the_run(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(InputError, match="can't be written"):
        store.make_ready(tmp_path)
    with full_disk(), pytest.raises(InputError, match="can't be written"):
        store.make_file_ready(tmp_path / "tape.json")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without hard links, as FAT is."""

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refused)


@pytest.mark.usefixtures("no_links")
def test_without_hard_links_results_are_kept_and_still_never_over_another(tmp_path: Path) -> None:
    store.make_ready(tmp_path)
    kept = [store.save(result(), tmp_path) for _ in range(3)]
    assert len(set(kept)) == 3
    assert all(store.load(path) == result() for path in kept)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.usefixtures("no_links")
def test_place_where_a_file_can_be_neither_linked_nor_renamed_is_found_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(Path, "replace", refused)
    with pytest.raises(InputError, match="not supported"):
        store.make_ready(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_link_stays_and_the_file_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    link, file = tmp_path / "link.json", tmp_path / "far" / "file.json"
    link.symlink_to(file)
    for data in (b"made", b"replaced"):
        store.replace(link, data)
        assert (link.is_symlink(), file.read_bytes()) == (True, data)
    assert [path.name for path in file.parent.iterdir()] == ["file.json"]


@pytest.mark.parametrize("through_a_link", [False, True])
def test_what_is_no_file_is_written_to_and_stays_what_it_is(tmp_path: Path, through_a_link: bool) -> None:
    pipe = name = tmp_path / "pipe"
    os.mkfifo(pipe)
    if through_a_link:
        name = tmp_path / "link.json"
        name.symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        store.make_file_ready(name)
        store.replace(name, b"through")
        assert (pipe.is_fifo(), os.read(reader, 99)) == (True, b"through")
    finally:
        os.close(reader)


def test_file_that_has_no_place_is_one_error(tmp_path: Path) -> None:
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    for path, says in ((tmp_path / "none" / "a.json", "no such folder"), (tmp_path, "folder|directory"), (loop, "oop")):
        for act in (store.make_file_ready, lambda path: store.replace(path, b"")):
            with pytest.raises(InputError, match=says):
                act(path)
    assert [path.name for path in tmp_path.iterdir()] == ["loop.json"]
