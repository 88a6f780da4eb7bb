"""The entry file, started by its path as the launcher does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

import trainer
from runs import Run, configuration

ENTRY = Path(trainer.__file__).with_name("entry.py")

USER_DATA = """
import torch

class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = torch.nn.Embedding(256, 256)

    def forward(self, tokens, targets):
        scores = self.scores(tokens).flatten(0, 1)
        return torch.nn.functional.cross_entropy(scores, targets.flatten())
"""


def start(
    arguments: list[str], environ: dict[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    # The wish of the surrounding launcher, if there is one, is not for this process.
    unwanted = ("PYTHONPATH", "TORCHELASTIC", "ORCHESTRATE")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return subprocess.run(
        [sys.executable, "-W", "error", str(ENTRY), *arguments],
        env=clean | environ, cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_without_the_launcher_it_says_what_is_missing(tmp_path: Path) -> None:
    ended = start(["--config", "none.json"], {}, tmp_path)
    assert ended.returncode == 1
    assert "ORCHESTRATE_RUN_DIR is not set" in ended.stderr
    assert "Traceback" not in ended.stderr


def environ_of(run: Run) -> dict[str, str]:
    return {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1",
        "ORCHESTRATE_RUN_DIR": str(run.run_dir), "ORCHESTRATE_ATTEMPT": "1",
        "ORCHESTRATE_CHECKPOINT_DIR": str(run.checkpoint_dir),
        "ORCHESTRATE_WORKDIR": str(run.workdir),
    }  # fmt: skip


@pytest.mark.parametrize("content", ["", "{}"])
def test_a_configuration_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    run = Run(tmp_path)
    run.workdir.mkdir()
    (tmp_path / "trainer.json").write_text(content)
    ended = start(["--config", str(tmp_path / "trainer.json")], environ_of(run), tmp_path)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert [error["kind"] for error in run.errors()] == ["configuration"]


def test_the_users_modules_do_not_get_in_the_way_nor_does_the_trainer(tmp_path: Path) -> None:
    """A user's data.py is not shadowed by the trainer's, and a user's trainer/ is not run."""
    run = Run(tmp_path)
    (run.workdir / "trainer").mkdir(parents=True)
    (run.workdir / "trainer" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    (run.workdir / "data.py").write_text(USER_DATA)
    (run.workdir / "a.txt").write_text("to be or not to be " * 100)
    config = configuration(num_ranks=1, model__factory="data:Tiny", steps=2)
    (tmp_path / "trainer.json").write_text(json.dumps(config))
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environ = environ_of(run) | {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
    }  # fmt: skip
    ended = start(["--config", str(tmp_path / "trainer.json")], environ, run.workdir)
    assert ended.returncode == 0, ended.stderr
    assert run.outcome()["outcome"] == "done"
    assert ended.stderr == ""
