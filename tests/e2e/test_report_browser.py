"""The pages about real runs in a real browser: nothing is asked for, nothing is complained of, and
what is drawn is there to be seen. The pictures stay in $ORCHESTRATE_ARTEFACTS."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import INSTALL, Browser, artefacts, browser, executable
from running import PROGRAMS

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.planner,
    pytest.mark.timeout(300),
    pytest.mark.skipif(executable() is None, reason=INSTALL),
]
JOB = """\
# A job file with </script><script>alert(1)</script>, "quotes" & <b>tags</b>
name: NAME
resources: {nodes: 2, ranks_per_node: 1}
env: {NOTE: "</pre><img src=x onerror=alert(1)> & 'more'", OMP_NUM_THREADS: "1"}
train:
  model: {factory: "acting:build", context: 32, args: {width: WIDTH, context: 32}}
  data: {python_docs: true}
  batch: {micro: 2}
  evaluation: {batches: 1, every: 10}
  logging: {every: 2, tensorboard: false}
  steps: 60
checkpoint: {every: 20}
"""
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
    """Two real runs, of which one was killed and went on, and their pages."""
    folder = tmp_path_factory.mktemp("work")
    shutil.copy(PROGRAMS / "acting.py", folder)
    (folder / "act.json").write_text(json.dumps([KILL]))
    submit(folder, "killed", 32)
    (folder / "act.json").unlink()
    submit(folder, "straight", 48)
    orchestrate(folder, "report", "killed")
    orchestrate(folder, "compare", "killed", "straight")
    for name in ("killed-report.html", "compare.html"):
        shutil.copy(folder / name, artefacts())
    return folder


def submit(folder: Path, name: str, width: int) -> None:
    text = JOB.replace("NAME\n", f"{name}\n", 1).replace("WIDTH", str(width))
    (folder / f"{name}.yaml").write_text(text)
    orchestrate(folder, "submit", f"{name}.yaml", "--watch")


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


@pytest.mark.parametrize("page", ["killed-report.html", "compare.html"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 380])
def test_the_page_asks_for_nothing_and_shows_all(
    window: Browser, folder: Path, page: str, dark: bool, width: int
) -> None:
    window.complaints.clear()
    window.requests.clear()
    window.show(folder / page, width=width, dark=dark)
    name = f"{page.removesuffix('.html')}-{'dark' if dark else 'light'}-{width}.png"
    assert len(window.screenshot(artefacts() / name)) > 20_000
    assert window.complaints == []
    assert window.requests == [(folder / page).resolve().as_uri()]
    assert window.value("document.querySelectorAll('script, img, link, iframe').length") == 0
    assert window.value("document.documentElement.scrollWidth") <= width
    curves = seen(window, ".curve")
    assert len(curves) >= 5
    for found in curves:
        assert found["width"] > 100 or page == "compare.html"  # by time one run is short
        assert found["width"] > 4
        assert found["left"] >= 0
        assert found["paint"] not in (found["card"], "none")


def test_attempts_and_time_are_drawn(window: Browser, folder: Path) -> None:
    window.show(folder / "killed-report.html")
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


def test_its_own_policy_runs_no_script(window: Browser, folder: Path) -> None:
    """A control of the test above: what the page's policy forbids is complained of."""
    text = (folder / "killed-report.html").read_text("utf-8")
    hostile = folder / "hostile.html"
    hostile.write_text(text.replace("<footer>", "<script>window.ran = 1</script><footer>"), "utf-8")
    window.complaints.clear()
    window.show(hostile)
    assert window.value("typeof window.ran") == "undefined"
    assert any("Content Security Policy" in complaint for complaint in window.complaints)


def seen(window: Browser, selector: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = window.value(VISIBLE.replace("SELECTOR", selector))
    return found
