"""Times in lines of logs, whatever wrote them: the engine, its logger, a container, the journal, an export.

A time is a tuple of whole units from the largest that is said (year, or month, or hour) down to seconds, as printed: a
zone or an offset is left aside. Times since 1970 are in UTC.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

Moment = tuple[int, ...]
TIME_OF_DAY = 3  # hour, minute, second
_WITH_YEAR = 6

_ESCAPE = r"(?:\x1b|\^\[|#033|(?<!\\)\\(?:x1b|033|u001[bB]|e))"
_STYLE = re.compile(
    rf"{_ESCAPE}\[[0-9;:?]*[ -/]*[@-~]|{_ESCAPE}\][^\x07\x1b]*(?:\x07|\x1b\\)"
    # colours whose escape character was lost on the way
    r"|\[(?:\d{1,3})(?:;\d{1,3})*m|[\x00\x1b\ufeff\u200b]"
)

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_CLOCK = r"(?P<h{n}>\d\d?):(?P<m{n}>\d\d)(?::(?P<s{n}>\d\d)(?!\d))?(?:[.,]\d+)?(?:\s?(?P<half{n}>[AaPp])\.?[Mm]\b)?"
_GAP = r"(?:[T_:]|,?\s+(?:at\s+)?|\s*-\s+)"


def _clock(number: int) -> str:
    return _CLOCK.replace("{n}", str(number))


_STAMP = re.compile(
    "|".join(
        (
            # 2026-11-29 21:14:36.123, 2026-11-29T21:14:36Z, 2026/11/29 21:14
            rf"(?<![\d.])(?P<y0>(?:19|20)\d\d)[-/.](?P<mo0>\d\d?)[-/.](?P<d0>\d\d?){_GAP}{_clock(0)}",
            # 20261129T211436, I20261129 21:14:36
            r"(?<!\d)(?P<y1>(?:19|20)\d\d)(?P<mo1>\d\d)(?P<d1>\d\d)[T _](?P<h1>\d\d):?(?P<m1>\d\d):?(?P<s1>\d\d)(?!\d)",
            # klog and glog: I1129 21:14:36.123456
            rf"(?<![A-Za-z0-9])[IWEFD](?P<mo2>\d\d)(?P<d2>\d\d)\s+{_clock(2)}",
            # Nov 29 21:14:36, Nov 29, 2026 21:14:36, Nov 29 2026 21:14:36, Nov 29 21:14:36 2026
            rf"\b(?P<name3>{_MONTH})\.?\s+(?P<d3>\d\d?)(?:,?\s+(?P<y3>(?:19|20)\d\d))?{_GAP}{_clock(3)}"
            r"(?:\s+(?P<after3>(?:19|20)\d\d)(?![\d:-]))?",
            # 29/Nov/2026:21:14:36, 29 Nov 2026 21:14:36
            rf"(?<!\d)(?P<d4>\d\d?)[ /-](?P<name4>{_MONTH})[ /-](?P<y4>(?:19|20)\d\d){_GAP}{_clock(4)}",
            # 11/29/2026 21:14:36, 29.11.2026 21:14:36: which is the month is seen where the other one is above 12
            rf"(?<![\d.])(?P<one5>\d\d?)[-/.](?P<two5>\d\d?)[-/.](?P<y5>(?:19|20)\d\d){_GAP}{_clock(5)}",
            # 11-29 21:14:36
            rf"(?<![\d./-])(?P<mo6>\d\d)[-/](?P<d6>\d\d)[T_ ]\s*{_clock(6)}",
            # 2026-Nov-29 21:14:36
            rf"(?<![\d.])(?P<y8>(?:19|20)\d\d)[ /-](?P<name8>{_MONTH})[ /-](?P<d8>\d\d?){_GAP}{_clock(8)}",
            # 21:14:36; no part of an address
            r"(?<!\d:)(?<!::)(?<![\w./-])(?P<h7>\d\d?):(?P<m7>\d\d):(?P<s7>\d\d)(?!\d|:\d{1,2}(?!\d))(?:[.,]\d+)?(?:\s?(?P<half7>[AaPp])\.?[Mm]\b)?",
        )
    )
)
_KEYED = re.compile(
    r"""\b(?:ts|time|timestamp|date|datetime|t)["']?\s*[=:]\s*["']?(\d{10}(?:\d{3}|\d{6}|\d{9})?(?:\.\d+)?)(?!\d)"""
)
_LEADING = re.compile(r"\s*\[?(\d{10}(?:\d{3}|\d{6}|\d{9})?(?:\.\d+)?)(?=[\]\s,])")
_EPOCH = re.compile(r"(\d{9,19})(?:\.\d+)?(?:[eE]\+\d+)?")
_EPOCH_RANGE_S = (10**9, 4 * 10**9)  # 2001 to 2096: numbers outside are no times
_EPOCH_UNITS = (1, 10**3, 10**6, 10**9)  # seconds, ms, µs, ns


def plain(text: str) -> str:
    r"""A line without colours and other codes of terminals, marks of byte order and zero bytes.

    >>> plain("\x1b[32mINFO\x1b[0m \x1b[90m09-12 10:11:12\x1b[0m [loggers.py:257]")
    'INFO 09-12 10:11:12 [loggers.py:257]'
    """
    return _STYLE.sub("", text)


@lru_cache(maxsize=1024)  # of the lines of one second, and of one line that is read with and without its prefixes
def moment_in(text: str) -> Moment | None:
    """The last time in this text, which in the head of a line is the innermost logger's; None without one.

    What it leaves unsaid, as the date or the year, comes from the times before it.

    >>> moment_in("[16:43:29 TP0] "), moment_in("INFO 11-29 21:14:36 [loggers.py:271]")
    ((16, 43, 29), (11, 29, 21, 14, 36))
    >>> moment_in("2026-08-03T14:43:29.5Z [16:43:29 TP0] ")
    (2026, 8, 3, 16, 43, 29)
    """
    found: Moment | None = None
    for since_1970 in (_LEADING.match(text), *_KEYED.finditer(text)):
        found = (since_1970 and from_epoch(since_1970[1])) or found
    for stamp in _stamps(text):
        found = completed(stamp, found)
    return found


def dated_moment_in(text: str) -> Moment | None:
    """The first time with a date in this text, as in the words after a message; None without one."""
    return next((stamp for stamp in _stamps(text) if len(stamp) > TIME_OF_DAY), None)


def moment_of(value: object) -> Moment | None:
    """The time that a field of a document holds: a time in words, or seconds, ms, µs or ns since 1970.

    >>> moment_of("2026-11-29T21:14:36.5Z"), moment_of(1796000000000), moment_of("1796000000000000000")
    ((2026, 11, 29, 21, 14, 36), (2026, 11, 30, 0, 53, 20), (2026, 11, 30, 0, 53, 20))
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    return from_epoch(value) or (moment_in(value) if isinstance(value, str) and len(value) <= 64 else None)


def from_epoch(value: float | str) -> Moment | None:
    """A number of seconds, ms, µs or ns since 1970 as a time in UTC; None where it is none of them."""
    if isinstance(value, str):
        if not _EPOCH.fullmatch(value.strip()):
            return None
        value = int(value) if value.strip().isdigit() else float(value)
    if isinstance(value, int) and value >= 10**20:
        return None
    least, most = _EPOCH_RANGE_S
    for unit in _EPOCH_UNITS:
        if least <= value / unit < most:
            at = datetime.fromtimestamp(int(value // unit), UTC)
            return at.year, at.month, at.day, at.hour, at.minute, at.second
    return None


def completed(moment: Moment, outer: Moment | None) -> Moment:
    """A time with the year or the date that it does not say, taken from a stamp put on the same line by another clock.

    The day or year is the nearest one, because the two clocks may be in different zones.

    >>> completed((0, 5, 0), (2026, 11, 29, 23, 5, 1)), completed((12, 31, 23, 0, 0), (2027, 1, 1, 4, 0, 0))
    ((2026, 11, 30, 0, 5, 0), (2026, 12, 31, 23, 0, 0))
    """
    if outer is None or len(outer) <= len(moment):
        return moment
    year = outer[0] if len(outer) == _WITH_YEAR else 2000  # a leap year, in which each day exists
    near_month, near_day, *near_clock = outer[-5:]
    near = datetime(year, near_month, near_day, near_clock[0], near_clock[1], near_clock[2])
    if len(moment) == TIME_OF_DAY:
        guesses = [
            near.replace(hour=moment[0], minute=moment[1], second=moment[2]) + timedelta(days) for days in (-1, 0, 1)
        ]
    else:
        month, day, hour, minute, second = moment
        guesses = [
            datetime(guess, month, day, hour, minute, second)
            for guess in (near.year - 1, near.year, near.year + 1)
            if _is_day(guess, moment)
        ]
    if not guesses:
        return moment
    best = min(guesses, key=lambda guess: abs(guess - near))
    whole = (best.year, best.month, best.day, best.hour, best.minute, best.second)
    return whole[-len(outer) :]


def _is_day(year: int, moment: Moment) -> bool:
    try:
        date(year, moment[0], moment[1])
    except ValueError:
        return False
    return True


def _stamps(text: str) -> Iterator[Moment]:
    for match in _STAMP.finditer(text):
        parts = {name.rstrip("0123456789"): value for name, value in match.groupdict().items() if value is not None}
        moment = _moment(parts)
        if moment is not None:
            yield moment


def _moment(parts: dict[str, str]) -> Moment | None:
    """A time of the named groups of a match; None where no clock or calendar shows it."""
    hour, minute, second = int(parts["h"]), int(parts["m"]), int(parts.get("s", 0))
    if "half" in parts:
        hour = hour % 12 + (12 if parts["half"] in "pP" else 0)
    if hour > 23 or minute > 59 or second > 60:
        return None
    clock = (hour, minute, min(second, 59))
    year = parts.get("y") or parts.get("after")
    if "one" in parts:
        one, two = int(parts["one"]), int(parts["two"])
        if one <= 12 and two <= 12 and one != two:
            return clock  # which of them is the month can't be told
        month, day = (two, one) if one > 12 else (one, two)
    elif "name" in parts:
        month, day = _MONTHS.index(parts["name"][:3].lower()) + 1, int(parts["d"])
    elif "mo" in parts:
        month, day = int(parts["mo"]), int(parts["d"])
        if year is None and month > 12:
            month, day = day, month
    else:
        return clock
    if not (1 <= month <= 12 and _is_day(int(year or 2000), (month, day))):
        return None
    return (int(year), month, day, *clock) if year else (month, day, *clock)
