"""What others put in front of an engine's lines: containers, pods, the journal, the tools that merge logs.

Such a prefix says which of several servers wrote the line, as a `Source`: pairs of a part (pod, host) and its name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hitlab.client.log_times import Moment, completed, moment_in

Source = tuple[tuple[str, str], ...]

_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL|trace|debug|info|warn|warning|error)"
_NAME = r"[A-Za-z0-9][\w.@/+-]*"
_RANK = r"(?:[A-Z]+_)*[A-Z]{1,2}P[-_=:]?\d+"
# A line of an engine or its logger: a level, a bracket, a time, a process in brackets or a document.
_LINE = rf"(?=[\[({{]|{_LEVEL}\b|\d{{4}}-\d\d-\d\d|[IWEFD]\d{{4}} )"

# A stamp at the start, with the rest of what syslog, the journal, CRI and Grafana's text files write after it.
_STAMPED = re.compile(
    r"(?:<\d{1,3}>(?:\d )?)?"
    r"(?P<stamp>(?:[A-Z][a-z]{2},? )?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?"
    r"(?: ?(?:Z|[+-]\d\d:?\d\d|UTC|GMT|[A-Z]{2,3}T\b))?"
    r"|[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)?"
    r"|\d\d:\d\d:\d\d(?:\.\d+)?"
    r"|\d{10}(?:\d{3}|\d{6}|\d{9})?(?:\.\d+)?)"
    r"[ \t]+(?P<stream>(?:stdout|stderr) [FP] )?"
)
_UNIT = re.compile(rf"(?:(?P<host>{_NAME}) )?(?P<unit>{_NAME}(?:\[[a-z][\w.-]*\])?)(?:(?<=\])|\[(?:\d+|-)\]): ?")
_OLD_UNIT = re.compile(rf"(?!{_LEVEL}\b)(?P<host>{_NAME}) (?P<unit>{_NAME}): ")
_RFC5424 = re.compile(rf"(?P<host>{_NAME}) (?P<unit>{_NAME}) (?:\S+) (?:\S+) (?:-|(?:\[[^\]]*\])+) ?(?:\ufeff)?")

_PREFIXES = (
    re.compile(rf"\[pod/(?P<pod>{_NAME}?)/(?P<container>[\w.-]+)\] ?"),  # kubectl logs --prefix
    re.compile(rf"(?:\d+\|)?(?!{_LEVEL}\b)(?P<service>{_NAME})\s*\| ?"),  # docker compose, docker service logs, pm2
    re.compile(r"(?P<file>[\w./+-]+\.(?:log|txt|out|err)):(?:\d+:)? ?"),  # grep
    re.compile(r"\((?P<actor>[\w:.#-]+) pid=\d+, ip=(?P<host>[\w.:]+)\) ?"),  # Ray
    re.compile(rf"\[(?!{_LEVEL}\]|{_RANK}\])(?P<service>[A-Za-z][\w./-]*)\]:? {_LINE}"),  # concurrently, others
    re.compile(rf"(?!{_LEVEL}:)(?P<host>{_NAME}): {_LINE}"),  # pdsh, srun --label, clush
    re.compile(rf"(?!{_LEVEL}\b)(?P<pod>[a-z0-9][a-z0-9.-]*) (?P<container>[a-z0-9][a-z0-9.-]*) {_LINE}"),  # stern
    re.compile(rf"\[(?P<pod>[a-z][\w.-]*) (?P<container>[a-z][\w.-]*)\]:? {_LINE}"),  # kubetail
    re.compile(rf"(?P<service>[a-z][a-z0-9.]*[-_/0-9][\w./:-]*)\s+{_LINE}"),  # aws logs tail, others
)
_LABELS = re.compile(
    r"""\{(?P<labels>\s*[\w.]+\s*=\s*"(?:[^"\\]|\\.)*"(?:\s*,\s*[\w.]+\s*=\s*"(?:[^"\\]|\\.)*")*\s*)\}\s*"""
)
_LABEL = re.compile(r"""([\w.]+)\s*=\s*"((?:[^"\\]|\\.)*)\"""")
_OF_FILE = re.compile(r"==> (.+) <==\s*")  # tail, head of several files
PROCESS = re.compile(r"^\s*\((\w+(?: pid=\d+|[^()]*\bpid=\d+))\)")

# What the fields of a document say of its server, by the end of their names in lower case and without punctuation.
_FIELDS = (
    ("host", re.compile(r"(?:host|hostname|host_?name|node|nodename|instance|instanceid)$")),
    ("namespace", re.compile(r"namespace(?:name)?$")),
    ("pod", re.compile(r"pod(?:name)?$")),
    ("container", re.compile(r"(?:container(?:name)?|composeservice)$")),
    ("service", re.compile(r"(?:service(?:name)?|app|appname|job|unit|identifier)$")),
    ("file", re.compile(r"(?:logstream(?:name)?|filename|logfile|filepath)$")),
)
_ORDER = ("host", "namespace", "pod", "container", "service", "unit", "actor", "file")


@dataclass(frozen=True, slots=True)
class Wrapping:
    """What stands around a line: the latest time of those who passed it on, and whom it is from."""

    moment: Moment | None = None
    source: Source = ()

    def within(self, moment: Moment | None, source: Mapping[str, str]) -> "Wrapping":
        """The wrapping inside this one; the inner time counts, completed by the outer one."""
        inner = self.moment if moment is None else completed(moment, self.moment)
        named = {**dict(self.source), **{part: _printable(name) for part, name in source.items() if name}}
        return Wrapping(inner, tuple((part, named[part]) for part in _ORDER if part in named))


def _printable(name: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in name)


def unwrapped(line: str, outer: Wrapping) -> tuple[str, Wrapping]:
    """A plain line without its prefixes, and what these say.

    >>> rest, wrapping = unwrapped("[pod/vllm-a/server] 2026-09-12T10:11:12.5Z INFO 09-12 10:11:12 ...", Wrapping())
    >>> rest, wrapping.moment, wrapping.source
    ('INFO 09-12 10:11:12 ...', (2026, 9, 12, 10, 11, 12), (('pod', 'vllm-a'), ('container', 'server')))
    """
    rest, wrapping = line.lstrip(), outer
    for _ in range(8):  # prefixes of prefixes
        before = rest
        if stamped := _STAMPED.match(rest):
            wrapping = wrapping.within(moment_in(stamped["stamp"] + " "), {})
            rest = rest[stamped.end() :].lstrip()
            words = stamped[0]
            unit = _RFC5424.match(rest) if words.startswith("<") else None
            unit = unit or _UNIT.match(rest) or (_OLD_UNIT.match(rest) if words[0].isalpha() else None)
            if unit:
                wrapping = wrapping.within(None, {"host": unit["host"] or "", "unit": unit["unit"]})
                rest = rest[unit.end() :].lstrip()
        elif labels := _LABELS.match(rest):
            wrapping = wrapping.within(None, source_of(dict(_LABEL.findall(labels["labels"]))))
            rest = rest[labels.end() :].lstrip()
        else:
            for prefix in _PREFIXES:
                if found := prefix.match(rest):
                    wrapping = wrapping.within(None, found.groupdict())
                    rest = rest[found.end() :].lstrip()
                    break
        if rest == before:
            break
    return rest, wrapping


def file_named(line: str) -> str | None:
    """The file whose lines follow, in the output of tail of several files; None for any other line."""
    found = _OF_FILE.fullmatch(line.strip())
    return found[1] if found else None


def source_of(fields: Mapping[str, object]) -> dict[str, str]:
    """What the fields or labels of a document say of the server that wrote it.

    >>> source_of({"k8s.pod.name": "vllm-a", "level": "info", "kubernetes.container_name": "server"})
    {'pod': 'vllm-a', 'container': 'server'}
    """
    found: dict[str, str] = {}
    for name, value in fields.items():
        if not isinstance(value, str) or not value or len(value) > 200:
            continue
        bare = re.sub(r"[^a-z]", "", re.sub(r"\.name$", "", name.lower()))
        for part, ending in _FIELDS:
            if ending.search(bare):
                found.setdefault(part, value)
                break
    return found
