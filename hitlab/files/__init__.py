"""Writes files whole, keeps outputs off what is not theirs, unpacks gzip and zstandard, knows the cache directory."""

from hitlab.files.folders import cache_dir, is_folder, os_errors_named, writable_cache_folder
from hitlab.files.outputs import Output, beginning, claim, ending
from hitlab.files.unpacking import ArchiveError, as_file, pieces_of, unpacked
from hitlab.files.writing import check_folder, replace, replacing, write_new, write_whole, written

__all__ = [
    "ArchiveError",
    "Output",
    "as_file",
    "beginning",
    "cache_dir",
    "check_folder",
    "claim",
    "ending",
    "is_folder",
    "os_errors_named",
    "pieces_of",
    "replace",
    "replacing",
    "unpacked",
    "writable_cache_folder",
    "write_new",
    "write_whole",
    "written",
]
