"""The mark in pictures and pages that says hitlab made them, by which a later run knows that it may overwrite them."""

import re
from pathlib import Path

from hitlab import __version__
from hitlab.files import beginning, ending

GENERATOR = f"hitlab {__version__}"
_NEAR_BYTES = 4096  # a mark stands so near to the beginning of a file, or to the end

# Where a picture of each form has its mark, in matplotlib's words, and how the file then begins.
_KEYS = {"svg": "Creator", "png": "Software", "pdf": "Creator"}
_SIGNATURES = {"svg": b"<?xml", "png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF-"}
_MARKS = {
    "svg": re.compile(rb"<dc:creator>\s*<cc:Agent>\s*<dc:title>hitlab \d"),
    "png": re.compile(rb"tEXtSoftware\0hitlab \d"),
    "pdf": re.compile(rb"/Creator \(hitlab \d"),
}


def form_of(path: Path) -> str:
    """The form of a picture by its file's ending: svg, png, ...; empty without one."""
    return path.suffix[1:].lower()


def picture_metadata(form: str) -> dict[str, str] | None:
    """What matplotlib writes into a picture of this form so that `drew` knows it; None where nothing can be written."""
    return {_KEYS[form]: GENERATOR} if form in _KEYS else None


def drew(path: Path) -> bool:
    """Whether hitlab drew the picture in this file; its ending says of which form it is. Raises OSError."""
    form = form_of(path)
    if form not in _KEYS or not beginning(path, 16).startswith(_SIGNATURES[form]):
        return False
    # The last version of a PDF's information is at its end.
    near = ending(path, _NEAR_BYTES) if form == "pdf" else beginning(path, _NEAR_BYTES)
    return _MARKS[form].search(near) is not None


def wrote_page(path: Path) -> bool:
    """Whether this file begins as report.html does, with its mark. Raises OSError."""
    return _PAGE.match(beginning(path, _NEAR_BYTES)) is not None


_PAGE = re.compile(
    rb'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="generator" content="hitlab \d'
)
