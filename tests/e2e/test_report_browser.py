"""Pages about real runs in a real browser: nothing is asked for, nothing is complained of, and
what is drawn is there to be seen. The pictures stay in $ORCHESTRATE_ARTEFACTS."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from browser import INSTALL, Browser, artefacts, browser, executable
from orchestrator.report.files import Run
from orchestrator.report.page import report_page
from orchestrator.report.told import Told
from running import PROGRAMS

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.planner,
    pytest.mark.timeout(300),
    pytest.mark.skipif(executable() is None, reason=INSTALL),
]
JOB = """\
# A job file with </script><script>alert(1)</script>, "quotes" & <b>tags</b>
name: killed
resources: {nodes: 2, ranks_per_node: 1}
env: {NOTE: "</pre><img src=x onerror=alert(1)> & 'more'", OMP_NUM_THREADS: "1"}
train:
  model: {factory: "acting:build", context: 32, args: {width: 32, context: 32}}
  data: {python_docs: true}
  batch: {micro: 2}
  evaluation: {batches: 1, every: 10}
  logging: {every: 2, tensorboard: false}
  steps: 60
checkpoint: {every: 20}
"""
PAGES = ("killed-report", "compare")
KILL = {"attempt": 1, "rank": 1, "phase": "step", "step": 34, "act": "kill rank"}
# What a line or a bar must be, to be seen: as large as it should be, and of another colour than
# what it lies on.
VISIBLE = """
[...document.querySelectorAll('SELECTOR')].map(e => {
  const box = e.getBoundingClientRect(), style = getComputedStyle(e);
  const card = getComputedStyle(e.closest('.card')).backgroundColor;
  const paint = e.matches('.curve') ? style.stroke : style.fill;
  return {width: box.width, height: box.height, left: box.left, paint: paint, card: card};
})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run that was killed and went on, what it was before that, and their pages."""
    folder = tmp_path_factory.mktemp("work")
    shutil.copy(PROGRAMS / "acting.py", folder)
    (folder / "act.json").write_text(json.dumps([KILL]))
    (folder / "job.yaml").write_text(JOB)
    orchestrate(folder, "submit", "job.yaml", "--watch")
    keep_first_attempt(folder / "runs" / "killed", folder / "runs" / "before")
    orchestrate(folder, "report", "killed")
    orchestrate(folder, "compare", "killed", "before")
    for page in PAGES:
        shutil.copy(folder / f"{page}.html", artefacts())
    return folder.resolve()


def keep_first_attempt(run_dir: Path, copy: Path) -> None:
    shutil.copytree(run_dir, copy)
    (copy / "DONE").unlink()
    shutil.rmtree(copy / "attempts" / "2")
    for name in ("metrics.jsonl", "goodput.jsonl"):
        lines = (copy / name).read_text().splitlines(keepends=True)
        (copy / name).write_text("".join(line for line in lines if '"attempt": 1' in line))
    (copy / "job.yaml").write_text(JOB.replace("steps: 60", "steps: 34"))


def orchestrate(folder: Path, *argv: str) -> None:
    command = [sys.executable, "-c", "from orchestrator.cli import main; main()", *argv]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def test_pages_of_a_real_run(window: Browser, folder: Path) -> None:
    """One test for all, since the run takes its time."""
    for page, dark, width in product(PAGES, (False, True), (1280, 380)):
        window.show(folder / f"{page}.html", width=width, dark=dark)
        name = f"{page}-{'dark' if dark else 'light'}-{width}.png"
        assert len(window.screenshot(artefacts() / name)) > 20_000
        assert window.value("document.querySelectorAll('script, img, link, iframe').length") == 0
        assert window.value("document.documentElement.scrollWidth") <= width
        curves_are_seen(window, 100 if page == "killed-report" else 1)  # by time one is short
    assert window.complaints == []
    assert set(window.requests) == {(folder / f"{p}.html").as_uri() for p in PAGES}
    window.show(folder / "killed-report.html")
    attempts_and_times_are_seen(window)


def curves_are_seen(window: Browser, width: float) -> None:
    curves = seen(window, ".curve")
    assert len(curves) >= 5
    for found in curves:
        assert found["width"] > width
        assert found["left"] >= 0
        assert found["paint"] not in (found["card"], "none")


def attempts_and_times_are_seen(window: Browser) -> None:
    bars = seen(window, ".bar.k-failed, .bar.k-done")
    assert len(bars) == 2
    assert all(bar["width"] > 20 and bar["height"] > 10 for bar in bars)
    assert bars[0]["paint"] != bars[1]["paint"]
    assert len(seen(window, ".bar.k-saved")) == 3
    assert len(seen(window, ".bar.k-compute, .bar.k-recovery, .bar.k-initialisation")) == 3
    text = window.value("document.body.innerText")
    assert "rank 1 on node 1" in text
    assert "step-000000020-attempt-00001" in text
    assert "# A job file with </script><script>alert(1)</script>" in text


def test_a_page_runs_no_script(window: Browser, tmp_path: Path) -> None:
    """Also a control of the test above: what the page's policy forbids is complained of."""
    page = tmp_path / "hostile.html"
    text = report_page(Run("demo", Told()))
    script = "<script>window.ran = 1</script><img src='https://localhost/x'>"
    page.write_text(text.replace("<footer>", f"{script}<footer>"), "utf-8")
    window.complaints.clear()
    window.show(page)
    assert window.value("typeof window.ran") == "undefined"
    said = [complaint for complaint in window.complaints if "Content Security Policy" in complaint]
    assert len(said) >= 2


def seen(window: Browser, selector: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = window.value(VISIBLE.replace("SELECTOR", selector))
    return found
