"""The report: one file, everything escaped, and a real browser that finds nothing to complain of."""

import re
import shutil
import subprocess
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers import Hitlab

from hitlab.cli import main
from hitlab.report import html
from hitlab.results import store
from hitlab.results.lab_result import LabResult
from hitlab.results.run_result import Check, Result

NASTY = """<script>alert(1)</script>"><img src=http://127.0.0.1:9/x onerror=alert(2)>{{ 7 * 7 }}$x_$'"""


def run(*arguments: object) -> None:
    with pytest.raises(SystemExit):
        main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A measured run and two labs, one that agrees and one that does not."""
    folder = tmp_path_factory.mktemp("results")
    run("measure", "--engine", "vllm", "--emulate", "--break-mode", "token", "--break-at", 400, "--out", folder)
    run("lab", "run", "hit-rate", "--engine", "sglang", "--emulate", "--out", folder)
    run("lab", "run", "concurrency", "--engine", "sglang", "--emulate", "--quick", "--out", folder)
    return folder


@pytest.fixture(scope="module")
def page(results: Path) -> Path:
    file = results / "report.html"
    run("report", results, "-o", file)
    return file


def only_run(results: Path) -> Result:
    (path,) = store.kept(results)
    return store.load(path)


def nasty(results: Path) -> str:
    """A report in which everything that a server or a file could have said is an attack."""
    honest = only_run(results)
    engine = msgspec.structs.replace(
        honest.engine, title=NASTY, version=NASTY, model=NASTY, base_url=NASTY, name=NASTY, source="real"
    )
    attack = msgspec.structs.replace(
        honest,
        engine=engine,
        verdict=NASTY,
        explanation=NASTY,
        notes=[NASTY],
        checks=[Check(name=NASTY, ok=False, detail=NASTY)],
        phases=[msgspec.structs.replace(phase, name=NASTY) for phase in honest.phases],
        experiment=replace(honest.experiment, workload=NASTY, break_mode=NASTY, cold_by=NASTY),
    )
    lab = store.load_lab(store.kept_labs(results)[0])
    parts = [msgspec.structs.replace(part, engine=engine) for part in lab.parts]
    texts = dict.fromkeys(("lab", "title", "question", "picture", "axis_name", "axis_unit", "command"), NASTY)
    attacking_lab: LabResult = msgspec.structs.replace(lab, parts=parts, **texts)
    return html.html([(NASTY, attack)], [(NASTY, attacking_lab)], NASTY)


class Elements(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))


def test_report_says_what_was_asked_predicted_and_measured_and_how_to_repeat_it(page: Path) -> None:
    text = page.read_text()
    assert "64 requests, 1000 shared and 200 own tokens, 1 prefix" in text
    assert "hitlab measure --engine vllm --emulate --block-size 16" in text
    assert "--break-mode token --break-at 400 --seed 0" in text
    assert "32.8125 %" in text
    assert "The second pass hits 400 of 992 matchable prefix tokens" in text
    assert "12 of 12 checks hold" in text
    assert text.count("<svg") == 2
    assert "hitlab lab run concurrency --engine sglang --emulate --quick" in text
    assert "78.1250 %" in text


def test_emulated_is_said_beside_every_engine_and_at_the_top(page: Path, results: Path) -> None:
    text = page.read_text()
    assert text.index("EMULATED</strong> marks a run") < text.index("<article")
    runs_and_labs, parts_and_contents = 3, 4 + 3
    assert text.count('<span class="emulated">') == parts_and_contents
    assert len(re.findall("<article", text)) == runs_and_labs
    real = msgspec.structs.replace(
        only_run(results), engine=msgspec.structs.replace(only_run(results).engine, source="real", version="1")
    )
    assert "EMULATED" not in html.html([("r.json", real)], [], "t")


def test_everything_from_a_server_is_escaped(results: Path) -> None:
    text = nasty(results)
    elements = Elements(text)
    assert [tag for tag, _ in elements.tags if tag in ("script", "img", "iframe", "object", "embed", "form")] == []
    assert [name for _, attributes in elements.tags for name in attributes if name.startswith("on")] == []
    assert "&lt;script&gt;" in text
    assert "{{ 7 * 7 }}" in text


def test_page_refers_to_nothing_outside_itself(page: Path, results: Path) -> None:
    for text in (page.read_text(), nasty(results)):
        references = [
            value or ""
            for _, attributes in Elements(text).tags
            for name, value in attributes.items()
            if name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset")
        ]
        assert references
        assert all(value.startswith(("#", "data:,")) for value in references)
        assert not re.search(r"@import|url\((?!#)", text)


def test_no_two_elements_have_one_id(page: Path) -> None:
    ids = [attributes["id"] for _, attributes in Elements(page.read_text()).tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_command_repeats_the_run(results: Path, hitlab: Hitlab, tmp_path: Path) -> None:
    honest = only_run(results)
    command = re.findall(r"<pre>hitlab (measure .*)</pre>", html.html([("r.json", honest)], [], "t"))
    again = hitlab(*command[0].split(), "--out", tmp_path, "--json")
    found = msgspec.json.decode(again.out, type=Result)
    assert [phase.prompts_sha256 for phase in found.phases] == [phase.prompts_sha256 for phase in honest.phases]


def test_contents_tell_runs_of_one_kind_apart_by_what_was_asked_and_when(page: Path) -> None:
    contents = page.read_text().partition("<nav")[2].partition("</nav>")[0]
    assert "shared-prefix, broken by token at 400</a>" in contents
    assert re.search(r"N=64 P=1000 S=200 B=16, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d<", contents)


def test_difference_that_a_lab_is_about_is_a_finding_and_any_other_disagrees(page: Path, results: Path) -> None:
    assert (
        page.read_text().count('<span class="mixed">differs: the finding</span>') == 2
    )  # in the contents and above it
    (lab,) = [lab for lab in map(store.load_lab, store.kept_labs(results)) if lab.lab == "concurrency"]
    trial = lab.trials[-1]
    better = [msgspec.structs.replace(point, hit_tokens=point.model_hit_tokens + 1) for point in trial.points]
    part = msgspec.structs.replace(lab.parts[0], trials=[msgspec.structs.replace(trial, points=better)])
    for changes in ({"lab": "hit-rate"}, {"lab": "unknown-here"}, {"parts": [part]}):
        text = html.html([], [("l.json", msgspec.structs.replace(lab, **changes))], "t")
        assert '<span class="bad">disagrees</span>' in text


def test_interrupted_is_not_the_same_as_not_trusted(results: Path) -> None:
    cut_short = Check(name="run complete", ok=False, detail="the run was cut short")
    broken = Check(name="queries add up", ok=False, detail="1 too many")
    for checks, says in (([cut_short], "interrupted"), ([cut_short, broken], "not to be trusted")):
        cut = msgspec.structs.replace(only_run(results), complete=False, valid=False, checks=checks)
        assert f">{says}</span>" in html.html([("r.json", cut)], [], "t")
    lab = msgspec.structs.replace(store.load_lab(store.kept_labs(results)[0]), complete=False)
    assert ">interrupted</span>" in html.html([], [("l.json", lab)], "t")


def test_report_where_there_is_no_folder_is_one_line(hitlab: Hitlab, results: Path, tmp_path: Path) -> None:
    ran = hitlab("report", results, "-o", tmp_path / "none" / "r.html")
    assert (ran.status, ran.err.count("\n"), list(tmp_path.iterdir())) == (1, 1, [])
    assert "no such folder" in ran.err


def test_report_of_nothing_is_an_error_and_a_damaged_file_is_left_out(
    hitlab: Hitlab, results: Path, tmp_path: Path
) -> None:
    ran = hitlab("report", tmp_path, "-o", tmp_path / "r.html")
    assert (ran.status, (tmp_path / "r.html").exists()) == (1, False)
    assert "measure something first" in ran.err
    for path in results.glob("*.json"):
        shutil.copy(path, tmp_path)
    (tmp_path / "broken.json").write_text("{")
    ran = hitlab("report", tmp_path, "-o", tmp_path / "r.html")
    assert (ran.status, ran.out.split(",")[1:]) == (0, [" 1 runs and 2 labs\n"])
    assert "left out" in ran.err and "broken.json" in ran.err


def test_failed_write_keeps_the_report_that_was_there(
    hitlab: Hitlab, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "report.html"
    file.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hitlab.files.writing.os.fsync", full)
    ran = hitlab("report", results, "-o", file, "--force")
    assert (ran.status, file.read_text()) == (1, "before")
    assert "No space left" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


# From here on in a real browser.

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr"),
    *("--force-device-scale-factor=1", "--virtual-time-budget=2000"),
]
DARK = "--blink-settings=preferredColorScheme=0"


def browse(file: Path, profile: Path, *arguments: str) -> tuple[str, list[str]]:
    """The page's DOM, where it is asked for, and what its console said."""
    ran = subprocess.run(
        [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", *arguments, file.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return ran.stdout, [line for line in ran.stderr.splitlines() if "CONSOLE" in line]


@browser
def test_browser_console_is_silent_even_under_attack(page: Path, results: Path, tmp_path: Path) -> None:
    control = tmp_path / "control.html"
    control.write_text("<script>console.error('heard')</script><img src='http://127.0.0.1:9/x'>")
    assert any("heard" in line for line in browse(control, tmp_path / "p", "--dump-dom")[1])
    attacked = tmp_path / "attacked.html"
    attacked.write_text(nasty(results))
    for file in (page, attacked):
        dom, console = browse(file, tmp_path / "p", "--dump-dom")
        assert console == []
        assert "<script" not in dom


@browser
def test_browser_sends_no_request(page: Path, results: Path, tmp_path: Path) -> None:
    def asked(file: Path) -> set[str]:
        log = tmp_path / "net.json"
        browse(file, tmp_path / "p", "--dump-dom", f"--log-net-log={log}")
        return {url for url in re.findall(r'"url":"(http[^"]+)"', log.read_text()) if "127.0.0.1:9/" in url}

    control, attacked = tmp_path / "control.html", tmp_path / "attacked.html"
    control.write_text("<img src='http://127.0.0.1:9/x'>")
    attacked.write_text(nasty(results))
    assert asked(control) == {"http://127.0.0.1:9/x"}
    assert asked(attacked) == set()


@browser
@pytest.mark.parametrize("width", [390, 1200])
def test_page_is_no_wider_than_the_screen(page: Path, tmp_path: Path, width: int) -> None:
    frame = tmp_path / "frame.html"  # a window would be made no narrower than 500 pixels
    script = (
        "const inside = document.querySelector('iframe').contentDocument.documentElement;"
        "document.title = `${inside.clientWidth} ${inside.scrollWidth}`"
    )
    frame.write_text(
        f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{escape(page.read_text())}" '
        f'onload="{escape(script)}"></iframe>'
    )
    dom, _ = browse(frame, tmp_path / "p", "--dump-dom", "--window-size=1400,1000")
    assert f"<title>{width} {width}</title>" in dom


@browser
def test_page_is_dark_where_the_reader_wants_it_dark(page: Path, tmp_path: Path) -> None:
    from PIL import Image, ImageStat

    def brightness(*arguments: str) -> float:
        picture = tmp_path / "shot.png"
        browse(page, tmp_path / "p", f"--screenshot={picture}", "--window-size=390,2500", *arguments)
        mean: float = ImageStat.Stat(Image.open(BytesIO(picture.read_bytes())).convert("L")).mean[0]
        return mean

    assert brightness() > 200
    assert brightness(DARK) < 60
