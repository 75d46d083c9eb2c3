"""How numbers look, on every table and line: rates in percent, counts with separators, differences with a sign.

Imports nothing: `predict` uses it.
"""


def percent(rate: float | None, decimals: int = 3, unit: str = " %", missing: str = "-") -> str:
    """A rate from 0 to 1 in percent; `missing` where there is none, which is never 0 %.

    >>> percent(0.81375, 4), percent(0.5, 1, unit=""), percent(None)
    ('81.3750 %', '50.0', '-')
    """
    return missing if rate is None else f"{100 * rate:.{decimals}f}{unit}"


def count(number: int | None) -> str:
    """A count with a comma between thousands; "-" where nothing was counted, which is never 0.

    >>> count(62496), count(None)
    ('62,496', '-')
    """
    return "-" if number is None else f"{number:,}"


def signed(tokens: int) -> str:
    """A difference in tokens, with its sign where there is one.

    >>> signed(1008), signed(-16), signed(0)
    ('+1,008', '-16', '0')
    """
    return f"{tokens:+,}" if tokens else "0"
