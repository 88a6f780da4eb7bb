"""A secret of a run is on neither page nor in the table, wherever in the run folder it stands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from running import standing_run

Cli = Callable[..., tuple[int, str, str]]
# By its name, and looks like nothing.
SECRET = "blue heron 17"
JOB = f"""\
name: NAME
env:
  DB_PASSWORD: {SECRET}
  NOTE: seen
command: [python, x.py, --api-key, tall grass 3]
"""


def make(root: Path, name: str, secret: str = SECRET) -> Path:
    """A run folder with its secret nearly everywhere."""
    folder = standing_run(root, name)
    receipt = json.loads((folder / "receipt.json").read_text())
    receipt |= {"workdir": f"/w/{secret}", "ids": {"a": secret, "token": "short leaf"}}
    files = {
        "receipt.json": receipt,
        "plan.json": {"api_key": "amber fox 9", "why": [f"with {secret}"], "password": 8231},
        "attempts/1/end.json": {"code": 1, "reason": f"said {secret}", "detail": f"x\n{secret}\ny"},
        "attempts/1/owner.json": {"host": secret},
        "attempts/2/errors/rank-0.json": {"rank": 0, "host": "h", "message": "password=dim owl"},
        "rendered/trainer.json": {"path": secret, "wandb_token": f"own of {name}"},
        "checkpoints/step-1/manifest.json": {"versions": {"x": secret}},
    }
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(json.dumps(content))
    (folder / "attempts" / "2").mkdir(exist_ok=True)
    (folder / "rendered" / "job.sh").write_text("export MY_TOKEN='wet stone'\nsay wet stone\n")
    job = JOB.replace("NAME", name).replace(SECRET, secret)
    job = job.replace("  NOTE", f"  {name.upper()}_TOKEN: rare {name} bird\n  NOTE")
    (folder / "job.yaml").write_text(job)
    lines = [
        {"event": "start", "step": 0, "attempt": 1, "hosts": [secret], "resumed_from": secret},
        {"event": "checkpoint", "step": 1, "attempt": 1, "path": secret},
        {"event": "checkpoint_failed", "step": 1, "reason": "MY_API_KEY=loud moth"},
        {"event": "network", "step": 1, "faults": [secret], "interface": secret},
        {"event": "sample", "step": 2, "text": f"it is {secret}; wet stone; short leaf"},
        {"step": 2, "loss": 1.0},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


HIDDEN = ("heron", "tall grass", "short leaf", "amber fox", "8231", "dim owl", "wet stone",
          "loud moth", "own of", "green", "rare")  # fmt: skip


@pytest.mark.parametrize(
    "argv",
    [("report", "one"), ("compare", "one", "two"), ("compare", "two", "one", "--csv")],
    ids=["report", "compare", "csv"],
)
def test_no_page_and_no_table_has_one(cli: Cli, tmp_path: Path, argv: tuple[str, ...]) -> None:
    make(tmp_path, "one")
    make(tmp_path, "two", "green pond 4")
    code, out, err = cli(*argv, "--out", "-")
    assert code == 0, err
    assert [words for words in HIDDEN if words in out] == []
    assert "***" in out


def test_what_is_no_secret_stays(cli: Cli, tmp_path: Path) -> None:
    make(tmp_path, "one")
    page = cli("report", "one", "--out", "-")[1]
    for words in ("/w/***", "it is ***", "said ***", "password=***", "NOTE: seen"):
        assert words in page, words
