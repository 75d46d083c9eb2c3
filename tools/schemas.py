"""Writes the JSON schemas of the files in results/ from the code that reads and writes them.

python tools/schemas.py           # rewrite docs/schemas/result.schema.json and docs/schemas/lab.schema.json
python tools/schemas.py --check   # exit status 1 when one is out of date
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from hitlab.results.lab_result import LAB_SCHEMA_VERSION, LabResult
from hitlab.results.run_result import SCHEMA_VERSION, Result

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "schemas"


def schemas() -> dict[Path, str]:
    """Each schema as its file has it."""
    return {
        FOLDER / "result.schema.json": _schema("result", SCHEMA_VERSION, Result),
        FOLDER / "lab.schema.json": _schema("lab", LAB_SCHEMA_VERSION, LabResult),
    }


def _schema(name: str, version: int, kind: Any) -> str:
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"hitlab {name}, schema_version {version}",
        **msgspec.json.schema(kind),
    }
    return json.dumps(document, indent=2) + "\n"


def main() -> None:
    """Write the schemas, or check them."""
    if "--check" in sys.argv[1:]:
        sys.exit(any(not file.is_file() or file.read_text() != text for file, text in schemas().items()))
    for file, text in schemas().items():
        file.write_text(text)


if __name__ == "__main__":
    main()
