"""A report on a run behind a real sshd is that on the same folder here, byte for byte."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from orchestrator.backends.base import Handle
from orchestrator.backends.remote import SshSite
from orchestrator.backends.runstore import LocalRunStore, RunStore
from orchestrator.cli.history import read_run
from orchestrator.profiles import find_profiles
from orchestrator.report.page import report_page
from slurm.sshd import HOST, missing, running_sshd

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
LEDGER = {"attempt": 1, "from": 0, "to": 9, "first_step": 1, "last_step": 9, "seconds": {"data": 9}}


def make_run(root: Path) -> None:
    for number, end in enumerate(({"code": 1, "reason": "rank 3: no"}, {"code": 0}), start=1):
        (root / "attempts" / str(number)).mkdir(parents=True)
        (root / "attempts" / str(number) / "end.json").write_text(json.dumps(end))
    (root / "rendered").mkdir()
    (root / "rendered" / "job.sh").write_text("export NOTE='a b'\n")
    (root / "job.yaml").write_text("name: demo\n")
    (root / "goodput.jsonl").write_text(json.dumps(LEDGER) + "\n")
    (root / "plan.json").symlink_to("/etc/passwd")
    (root / "checkpoints").symlink_to("checkpoints")
    os.mkfifo(root / "receipt.json")
    (root / "attempts" / "2" / "owner.json").symlink_to(root / "attempts" / "1" / "end.json")
    (root / "attempts" / "1" / "owner.json").mkdir()
    (root / "attempts" / "1" / "hangs").symlink_to("/tmp")
    lines = [json.dumps({"step": n, "attempt": 1, "loss": 1.0 + n % 7}) for n in range(1, 3000)]
    (root / "metrics.jsonl").write_text("\n".join(lines))


def page_of(store: RunStore, root: Path) -> str:
    profile = find_profiles(None, {}, root).choose("local")
    return report_page(read_run(Handle("local", "demo", root), store, profile, store))


def test_it_is_the_same_as_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_run(tmp_path)
    here = page_of(LocalRunStore(tmp_path), tmp_path)
    assert all(words in here for words in ("rank 3: no", "<td>a b</td>", "at 2,999", "name: demo"))
    assert "<li>attempts/1/owner.json: a folder</li>" in here
    assert "<li>checkpoints: a link that leads nowhere</li>" in here
    assert "<li>plan.json: a link that leads out of the run folder</li>" in here
    assert "<li>receipt.json: neither a file nor a folder</li>" in here
    with tempfile.TemporaryDirectory(prefix="ssh-", dir="/tmp") as folder, running_sshd() as server:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)  # no connection of whoever runs this
        there = SshSite(HOST, server.command())
        assert page_of(there.store(tmp_path), tmp_path) == here
        there.connection.close()
