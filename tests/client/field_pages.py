"""Pages of tests/data/field-2 as they are after so many scrapes."""

import re
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "data" / "field-2"


def page(name: str, scrapes: int) -> str:
    """A page holds [[expressions]] of n, the number of scrapes; Q and H are tokens sent and found."""
    values = {"n": scrapes, "Q": 1200.0 * scrapes, "H": 992.0 * scrapes}
    return re.sub(
        r"\[\[(.+?)\]\]", lambda found: str(float(eval(found[1], values))), (DATA / f"{name}.prom").read_text()
    )
