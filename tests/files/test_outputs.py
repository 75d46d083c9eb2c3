"""The rule of named outputs, for every way in which two names can mean one file and all that can be there already."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitlab.errors import InputError, UsageError
from hitlab.files import Output, claim

OURS = b"written by hitlab"


def output(path: Path, option: str = "--csv") -> Output:
    return Output(option, path, "a table", lambda file: file.read_bytes() == OURS)


def same(path: Path) -> Path:
    return path


def dotted(path: Path) -> Path:
    return Path(os.path.relpath(path.parent)) / "." / path.name


def soft(path: Path) -> Path:
    link = path.with_name("soft")
    link.symlink_to(path)
    return link


def softer(path: Path) -> Path:
    return soft(soft(path).rename(path.with_name("softer")))


def hard(path: Path) -> Path:
    link = path.with_name("hard")
    link.hardlink_to(path)
    return link


def by_folder(path: Path) -> Path:
    link = path.parent / "folder"
    link.symlink_to(path.parent)
    return link / path.name


def upwards(path: Path) -> Path:
    (path.parent / "below").mkdir(exist_ok=True)
    return path.parent / "below" / ".." / path.name


# Ways to another name of a file; all but a hard link lead also to one that does not exist yet.
TO_EXISTING: list[Callable[[Path], Path]] = [same, dotted, soft, softer, hard, by_folder, upwards]
CONTENTS = {"none": None, "empty": b"", "ours": OURS, "foreign": b"notes of a year", "ours and more": OURS + b"!"}


@given(
    way=st.sampled_from(TO_EXISTING),
    content=st.sampled_from([b"", OURS, b"a trace"]),
    force=st.booleans(),
    read_first_name=st.booleans(),
)
def test_no_output_is_an_input_whatever_the_name_the_content_and_force(
    way: Callable[[Path], Path], content: bytes, force: bool, read_first_name: bool
) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "trace.jsonl"
        file.write_bytes(content)
        other = way(file)
        read, written = (file, other) if read_first_name else (other, file)
        with pytest.raises(UsageError, match="is the input"):
            claim([output(Path(folder) / "new"), output(written, "--plot")], [read], force=force)
        assert file.read_bytes() == content


@given(way=st.sampled_from(TO_EXISTING), content=st.sampled_from([*CONTENTS]), force=st.booleans())
def test_only_what_hitlab_wrote_or_nothing_is_overwritten_without_force(
    way: Callable[[Path], Path], content: str, force: bool
) -> None:
    with TemporaryDirectory() as folder:
        file, data = Path(folder) / "file", CONTENTS[content]
        if data is None and way is hard:
            return
        if data is not None:
            file.write_bytes(data)
        wanted = [output(way(file))]
        before = sorted(Path(folder).iterdir())
        if force or content in ("none", "empty", "ours"):
            claim(wanted, force=force)
        else:
            with pytest.raises(InputError, match=r"exists and is not a table that hitlab wrote; .* --csv.* `force`"):
                claim(wanted, force=force)
        # Nothing is written by asking.
        assert sorted(Path(folder).iterdir()) == before
        assert (file.read_bytes() if file.exists() else None) == data


@given(way=st.sampled_from(TO_EXISTING), there=st.booleans(), force=st.booleans())
def test_two_outputs_are_never_one_file(way: Callable[[Path], Path], there: bool, force: bool) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "file"
        if not there and way is hard:
            return
        if there:
            file.touch()
        with pytest.raises(UsageError, match=r"--plot .* is also the file of --csv"):
            claim([output(file), output(way(file), "--plot")], force=force)


def test_input_folder_stands_for_the_files_in_it(tmp_path: Path) -> None:
    session = tmp_path / "sessions" / "a.json"
    session.parent.mkdir()
    session.write_bytes(OURS)
    page = session.with_name("report.html")
    page.write_bytes(OURS)
    with pytest.raises(UsageError, match=r"--csv .*soft is the input .*a\.json"):
        claim([output(soft(session))], [session.parent], force=True)
    claim([output(page)], [session.parent])


def test_file_that_can_not_be_recognised_for_whatever_reason_is_not_ours(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")

    def fails(path: Path) -> bool:
        raise RuntimeError("a parser of foreign files met a foreign file")

    with pytest.raises(InputError, match="exists and is not a table"):
        claim([Output("--csv", file, "a table", fails)])


def test_file_that_stdout_goes_to_is_no_place_for_an_output(tmp_path: Path) -> None:
    file = tmp_path / "out"
    with file.open("w") as printed:
        kept = os.dup(1)
        os.dup2(printed.fileno(), 1)
        try:
            with pytest.raises(UsageError, match="is where this command prints"):
                claim([output(file)], force=True)
        finally:
            os.dup2(kept, 1)
            os.close(kept)


def test_write_protected_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(OURS)
    monkeypatch.setattr("hitlab.files.outputs.os.access", lambda path, mode: mode != os.W_OK)  # tests may run as root
    with pytest.raises(InputError, match="Permission denied"):
        claim([output(file)], force=True)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/null is one file here and may be another elsewhere")
def test_device_may_be_read_and_written_by_many() -> None:
    null = Path("/dev/null")
    claim([output(null), output(null, "--plot")], [null])
