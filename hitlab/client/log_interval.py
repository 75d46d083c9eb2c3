"""An interval of a log, and the order in time of its lines, where their times may lack a date or a year."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from hitlab.client.dialect import LogEntry
from hitlab.client.log_times import TIME_OF_DAY, Moment
from hitlab.errors import UsageError

_MOMENT = re.compile(r"(?:(?:(\d{4})-)?(\d\d)-(\d\d)[ T])?(\d\d):(\d\d)(?::(\d\d))?")
_TIME_FORM = "give HH:MM[:SS], with MM-DD or YYYY-MM-DD before it"
_LEAP_YEAR = ("2000", "01", "01", "00", "00", "00")  # what a bound does not say: 02-29 is a day of some year
_DAY_S, _MONTH_S = 86_400, 86_400 * 31


@dataclass(frozen=True, slots=True)
class Between:
    """An interval of a log, both ends included; None is open.

    Only what both a bound and a line say is compared: a line without a year is in every year.

    >>> between = Between.parse("11-29 21:14", "11-29 21:15")
    >>> [(2026, 11, 29, 21, 15, 59) in between, (11, 29, 21, 16, 0) in between]
    [True, False]
    """

    since: Moment | None = None
    until: Moment | None = None

    @classmethod
    def parse(cls, since: str | None, until: str | None) -> "Between":
        """Bounds as [[YYYY-]MM-DD ]HH:MM[:SS]; without seconds, the whole minute is in. Raises UsageError."""
        return cls(_moment("`since`", since, "00"), _moment("`until`", until, "59"))

    @property
    def open(self) -> bool:
        """Whether every line is in it."""
        return self.since is None and self.until is None

    @property
    def needs_one_day(self) -> bool:
        """Whether a bound says a time of day and no date."""
        return any(bound is not None and len(bound) == TIME_OF_DAY for bound in (self.since, self.until))

    def __contains__(self, moment: Moment) -> bool:
        after = self.since is None or _compared(self.since, moment) <= _compared(moment, self.since)
        return after and (self.until is None or _compared(moment, self.until) <= _compared(self.until, moment))


def days_of(moments: Iterable[Moment]) -> int:
    """How many days these times are of; one without a year is of the same day in any year that is there."""
    days = {moment[:-TIME_OF_DAY] for moment in moments if len(moment) > TIME_OF_DAY}
    with_year = {day[1:] for day in days if len(day) > 2}
    return sum(1 for day in days if len(day) > 2 or day not in with_year)


def in_words(moment: Moment) -> str:
    """A moment as a log prints it.

    >>> in_words((11, 29, 21, 4, 6)), in_words((2026, 11, 29, 21, 4, 6))
    ('11-29 21:04:06', '2026-11-29 21:04:06')
    """
    date, time = moment[:-TIME_OF_DAY], moment[-TIME_OF_DAY:]
    return f"{'-'.join(f'{part:02}' for part in date)} {':'.join(f'{part:02}' for part in time)}".strip()


def in_time_order(entries: Sequence[LogEntry]) -> list[LogEntry]:
    """The entries whose times say most, earliest first; all of them as they are where none has a time.

    Exports are often newest first. Times with a year are sorted. Times without one may pass midnight or New Year:
    where they do, what the file says counts, read forwards or backwards.
    """
    units = max((len(entry.moment) for entry in entries if entry.moment), default=0)
    dated = [(entry.moment, entry) for entry in entries if entry.moment and len(entry.moment) == units]
    if not dated:
        return list(entries)
    steps = [_seconds(after) - _seconds(before) for (before, _), (after, _) in pairwise(dated)]
    cycle_s = _DAY_S if units == TIME_OF_DAY else 12 * _MONTH_S
    ahead = sum((step > 0) - (step < 0) for step in steps if abs(step) <= cycle_s / 2)
    wraps = 0  # above 0: passed midnight or New Year forwards, below 0 backwards; else neither, or as often both
    if units < len(_LEAP_YEAR):
        wraps = sum((step < 0) - (step > 0) for step in steps if abs(step) > cycle_s / 2)
        wraps = 0 if wraps * ahead < 0 else wraps
    if wraps < 0 or (not wraps and ahead < 0):
        dated.reverse()
    if not wraps:
        dated.sort(key=lambda each: each[0])
    return [entry for _, entry in dated]


def _seconds(moment: Moment) -> int:
    """A number that grows with time, within a year or a day for times that say no more."""
    year, month, day, hour, minute, second = (*(0,) * (len(_LEAP_YEAR) - len(moment)), *moment)
    return (year * 12 + month) * _MONTH_S + day * _DAY_S + hour * 3600 + minute * 60 + second


def _moment(option: str, text: str | None, seconds: str) -> Moment | None:
    if text is None:
        return None
    found = _MOMENT.fullmatch(text.strip())
    if not found:
        raise UsageError(f"{option} {text!r} is no time", todo=_TIME_FORM)
    parts = (*found.groups()[:5], found[6] or seconds)
    whole = [part or default for part, default in zip(parts, _LEAP_YEAR, strict=True)]
    try:
        datetime.fromisoformat("{}-{}-{}T{}:{}:{}".format(*whole))
    except ValueError as error:
        raise UsageError(f"{option} {text!r} is no time: {error}", todo=_TIME_FORM) from None
    return tuple(int(part) for part in parts if part is not None)


def _compared(moment: Moment, other: Moment) -> Moment:
    """The units of a moment that the other moment has as well."""
    return moment[-min(len(moment), len(other)) :]
