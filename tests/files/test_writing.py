"""Files are written whole or not at all, and a new one never replaces another."""

import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hitlab import files
from hitlab.errors import InputError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def full_disk() -> Iterator[None]:
    """Files that can be made and take no byte, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without hard links, as FAT is."""

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refused)


# Files that take the place of older ones


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device"), ValueError])
def test_whatever_goes_wrong_while_a_file_is_written_leaves_the_old_one_whole(
    tmp_path: Path, failure: BaseException
) -> None:
    file = tmp_path / "points.csv"
    file.write_bytes(b"old")
    with pytest.raises((KeyboardInterrupt, InputError, ValueError)), files.replacing(file) as part:
        part.write(b"half of the new")
        part.flush()
        raise failure
    assert (file.read_bytes(), names(tmp_path)) == (b"old", ["points.csv"])


def test_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "points.csv"
    file.write_bytes(b"old")
    with full_disk(), pytest.raises(InputError, match=r"points\.csv: can't be written: File too large"):
        files.replace(file, b"new")
    assert (file.read_bytes(), names(tmp_path)) == (b"old", ["points.csv"])


def test_replaced_file_keeps_its_permissions_and_a_new_one_has_the_usual_ones(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    files.replace(tmp_path / "new", b"")
    kept = tmp_path / "kept"
    kept.touch()
    kept.chmod(0o640)
    files.replace(kept, b"again")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert (modes["new"], modes["kept"]) == (modes["usual"], 0o640)


def test_longest_name_there_is_can_be_written(tmp_path: Path) -> None:
    file = tmp_path / ("x" * os.pathconf(tmp_path, "PC_NAME_MAX"))
    files.replace(file, b"made")
    assert file.read_bytes() == b"made"


def test_link_stays_and_the_file_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    link, file = tmp_path / "link.json", tmp_path / "far" / "file.json"
    link.symlink_to(file)
    for data in (b"made", b"replaced"):
        files.replace(link, data)
        assert (link.is_symlink(), file.read_bytes()) == (True, data)
    assert names(file.parent) == ["file.json"]


@pytest.mark.parametrize("through_a_link", [False, True])
def test_what_is_no_file_is_written_to_and_stays_what_it_is(tmp_path: Path, through_a_link: bool) -> None:
    pipe = name = tmp_path / "pipe"
    os.mkfifo(pipe)
    if through_a_link:
        name = tmp_path / "link.json"
        name.symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.claim([files.Output("--out", name, "a recording", lambda path: False)])
        files.replace(name, b"through")
        assert (pipe.is_fifo(), os.read(reader, 99)) == (True, b"through")
    finally:
        os.close(reader)


def test_file_that_has_no_place_is_one_error(tmp_path: Path) -> None:
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    for path, says in ((tmp_path / "none" / "a.json", "no such folder"), (tmp_path, "folder|directory"), (loop, "oop")):
        output = files.Output("--out", path, "a recording", lambda path: False)
        with pytest.raises(InputError, match=says):
            files.claim([output])
        with pytest.raises(InputError, match=says):
            files.replace(path, b"")
    assert names(tmp_path) == ["loop.json"]


# New files


def test_new_files_of_one_name_are_numbered(tmp_path: Path) -> None:
    written = [files.write_new(tmp_path, "run", data) for data in (b"1", b"2", b"3")]
    assert [path.name for path in written] == ["run.json", "run-2.json", "run-3.json"]
    assert [path.read_bytes() for path in written] == [b"1", b"2", b"3"]


def test_new_file_takes_no_number_of_which_another_ending_is_taken(tmp_path: Path) -> None:
    (tmp_path / "lab.svg").write_bytes(b"somebody's drawing")
    (tmp_path / "lab-2.png").write_bytes(b"somebody's photo")
    assert files.write_new(tmp_path, "lab", b"{}", beside=(".svg", ".png")).name == "lab-3.json"
    assert (tmp_path / "lab.svg").read_bytes() == b"somebody's drawing"


def test_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hitlab.files.writing.os.fsync", full)
    with pytest.raises(InputError, match="No space left"):
        files.write_new(tmp_path, "run", b"data")
    assert names(tmp_path) == []


@pytest.mark.usefixtures("no_links")
def test_without_hard_links_new_files_are_still_never_over_another(tmp_path: Path) -> None:
    files.check_folder(tmp_path)
    written = [files.write_new(tmp_path, "run", data) for data in (b"1", b"2", b"3")]
    assert [path.read_bytes() for path in written] == [b"1", b"2", b"3"]
    assert names(tmp_path) == ["run-2.json", "run-3.json", "run.json"]


# Places that are tried before the work


def test_full_disk_is_found_before_the_work(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(InputError, match="can't be written"):
        files.check_folder(tmp_path)
    with full_disk(), pytest.raises(InputError, match="can't be written"):
        files.claim([files.Output("--out", tmp_path / "tape.json", "a recording", lambda path: False)])
    assert names(tmp_path) == []


def test_folder_that_can_not_be_made_is_found_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="`out`"):
        files.check_folder(tmp_path / "file" / "results")


@pytest.mark.usefixtures("no_links")
def test_place_where_a_file_can_be_neither_linked_nor_renamed_is_found_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(Path, "replace", refused)
    with pytest.raises(InputError, match="not supported"):
        files.check_folder(tmp_path)
    assert names(tmp_path) == []


# The cache directory


def test_cache_directory_is_where_xdg_says_if_that_is_a_whole_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    for given, expected in (("/far", "/far/hitlab"), ("near", "/home/somebody/.cache/hitlab"), ("", None)):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert str(files.cache_dir()) == (expected or "/home/somebody/.cache/hitlab")


def test_cache_folder_that_can_not_be_made_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OTHER", str(tmp_path / "other"))
    assert files.writable_cache_folder("a/b") == tmp_path / "cache" / "hitlab" / "a" / "b"
    assert files.writable_cache_folder("a/b", "OTHER") == tmp_path / "other" / "hitlab" / "a" / "b"
    (tmp_path / "file").touch()
    monkeypatch.setenv("OTHER", str(tmp_path / "file"))
    assert files.writable_cache_folder("a/b", "OTHER") is None


# Files that changed since their place was claimed


def by_writing(file: Path) -> None:
    file.write_bytes(b"notes")


def by_renaming(file: Path) -> None:
    """As editors save; of the same size and time as the file was."""
    before = file.stat() if file.exists() else file.parent.stat()
    other = file.with_name("other")
    other.write_bytes(b"notes")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(file)


def by_link(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(b"notes")
    file.unlink(missing_ok=True)
    file.symlink_to(other)


def by_folder(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.mkdir()


def by_pipe(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def claimed(file: Path) -> None:
    files.claim([files.Output("--csv", file, "a table", lambda _: True)])


@pytest.mark.parametrize("before", [None, b"older"])
@pytest.mark.parametrize("change", [by_writing, by_renaming, by_link, by_folder, by_pipe])
def test_what_took_an_outputs_place_meanwhile_is_kept_and_ours_is_beside_it(
    tmp_path: Path, change: Callable[[Path], None], before: bytes | None
) -> None:
    file = tmp_path / "tape.json.gz"
    if before is not None:
        file.write_bytes(before)
    claimed(file)
    change(file)
    files.replace(file, b"ours")
    place = files.written(file)
    assert place.read_bytes() == b"ours"
    if change is by_link:
        assert (place.name, file.read_bytes(), file.is_symlink()) == ("other-2", b"notes", True)
    else:
        assert place == tmp_path / "tape-2.json.gz"
    if file.is_file():
        assert file.read_bytes() == b"notes"
    assert file.exists()


@pytest.mark.parametrize("before", [None, b"", b"older"])
def test_outputs_place_that_is_as_it_was_is_written_to_as_often_as_asked(tmp_path: Path, before: bytes | None) -> None:
    file = tmp_path / "points.csv"
    if before is not None:
        file.write_bytes(before)
    claimed(file)
    for data in (b"first", b"second"):
        files.replace(file, data)
        assert (file.read_bytes(), files.written(file), names(tmp_path)) == (data, file, ["points.csv"])


@pytest.mark.parametrize("change", [Path.unlink, lambda file: file.write_bytes(b"")])
def test_outputs_place_where_nothing_is_left_is_written_to(tmp_path: Path, change: Callable[[Path], None]) -> None:
    file = tmp_path / "points.csv"
    file.write_bytes(b"older")
    claimed(file)
    change(file)
    files.replace(file, b"ours")
    assert (file.read_bytes(), names(tmp_path)) == (b"ours", ["points.csv"])


def test_numbers_that_are_taken_are_kept_and_the_longest_name_has_room_for_one(tmp_path: Path) -> None:
    file = tmp_path / ("x" * (os.pathconf(tmp_path, "PC_NAME_MAX") - 4) + ".csv")
    claimed(file)
    file.write_bytes(b"notes")
    for _ in range(2):
        files.replace(file, b"ours")
    assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == [b"notes", b"ours", b"ours"]
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv"}


def test_link_of_an_output_that_is_as_it_was_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "points.csv"
    file.write_bytes(b"older")
    link = tmp_path / "link.csv"
    link.symlink_to(file)
    claimed(link)
    files.replace(link, b"ours")
    assert (file.read_bytes(), link.is_symlink(), files.written(link)) == (b"ours", True, link)
