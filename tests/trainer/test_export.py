"""`orchestrate-trainer export`: every layout, what is refused, and what the command says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

import trainer as package
from ranks import grouped, run_ranks
from runs import publish
from trainer import checkpoint
from trainer.boxes import Box
from trainer.commands import main
from trainer.shards import Part, write_shards

ROOT = Path(package.__file__).resolve().parent.parent
NAME = "step-000000004-attempt-00001"


def model() -> dict[str, Any]:
    """Tensors of every kind that a model's state may hold."""
    first, large = torch.arange(12.0).reshape(3, 4), torch.arange(100_000.0)
    return {
        "token.weight": first, "turned": torch.arange(6.0).reshape(2, 3).t(),
        "half": large[10:60_000], "empty": torch.zeros(0, 4), "none": torch.zeros(0, 4),
        "count": torch.tensor(7), "narrow": torch.ones(2, dtype=torch.bfloat16),
        "head.weight": first, "extra": {"x": 1},
    }  # fmt: skip


def save(run_dir: Path, step: int = 4) -> Path:
    manifest = checkpoint.Manifest(step, 1, 1, "ddp")
    return publish(run_dir, manifest, {"model.pt": model(), "trainer.pt": {}})


def assert_whole(out: Path) -> None:
    found, wanted = load_file(out), model()
    assert set(found) == set(wanted) - {"head.weight", "extra"}
    for name, value in found.items():
        assert value.dtype == wanted[name].dtype
        assert torch.equal(value, wanted[name]), name


@pytest.mark.parametrize("source", [".", f"checkpoints/{NAME}"])
def test_a_run_or_a_checkpoint(
    tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = save(tmp_path), tmp_path / "out.safetensors"
    assert main(["export", str(tmp_path / source), str(out)]) == 0
    assert_whole(out)
    assert capsys.readouterr().out.startswith(f"{out}: 7 tensors, ")
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    assert checkpoint.verify(path).step == 4


def write_in_parts(run_dir: Path) -> None:
    """A checkpoint of two ranks, of which each holds some rows of "w" and one holds "b"."""
    rank, folder = dist.get_rank(), run_dir / "checkpoints" / NAME
    if rank == 0:
        folder.mkdir(parents=True)
    dist.barrier()
    rows = torch.arange(20.0).reshape(5, 4)
    own: Tensor = rows[:3] if rank == 0 else rows[3:]
    parts = {
        "model.w": Part((5, 4), [Box((0 if rank == 0 else 3, 0), own)]),
        "optimizer.w.exp_avg": Part((5, 4), [Box((0 if rank == 0 else 3, 0), own * 2)]),
    }
    if rank == 1:
        parts["model.b"] = Part((2,), [Box((0,), torch.tensor([1.0, 2.0]))])
    group = dist.group.WORLD
    assert group is not None
    told: list[Any] = [None, None]
    dist.all_gather_object(told, write_shards(folder, parts, group))
    if rank == 0:
        write_manifest(folder, {**told[0], **told[1]})


def write_manifest(folder: Path, files: dict[str, Any]) -> None:
    manifest = checkpoint.Manifest(4, 1, 2, "full_shard", format="sharded", files=files)
    (folder / "manifest.json").write_text(json.dumps(asdict(manifest)))


def test_parts_of_several_ranks_are_put_together(tmp_path: Path) -> None:
    run_ranks(2, grouped, write_in_parts, tmp_path)
    out = tmp_path / "out.safetensors"
    assert main(["export", str(tmp_path), str(out)]) == 0
    found = load_file(out)
    assert set(found) == {"w", "b"}
    assert torch.equal(found["w"], torch.arange(20.0).reshape(5, 4))
    assert found["b"].tolist() == [1.0, 2.0]


def failed(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str]:
    code = main(["export", *map(str, argv)])
    return code, capsys.readouterr().err


def test_a_broken_one_is_not_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, 2)
    path, out = save(tmp_path), tmp_path / "out.safetensors"
    data = bytearray((path / "model.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "model.pt").write_bytes(bytes(data))
    code, err = failed(capsys, path, out)
    assert code == 1
    assert "the contents of model.pt have changed" in err
    assert not out.exists()
    assert main(["export", str(tmp_path), str(out)]) == 0  # the newest whole one of the run
    assert "step-000000002" in capsys.readouterr().out


def test_faults_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.safetensors"
    assert failed(capsys, tmp_path / "no", out)[0] == 2
    code, err = failed(capsys, tmp_path, out)
    assert code == 2
    assert f"{tmp_path}: holds no whole checkpoint" in err
    save(tmp_path)
    out.write_bytes(b"mine")
    code, err = failed(capsys, tmp_path, out)
    assert code == 2
    assert "is there already" in err
    assert out.read_bytes() == b"mine"
    code, err = failed(capsys, tmp_path, tmp_path / "no" / "x.safetensors")
    assert code == 1
    assert f"{tmp_path}/no/x.safetensors: could not be written" in err


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
from trainer.commands import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """No file may grow beyond 100 kB; Python ignores the signal of it."""
    save(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED, "export", ".", "out.safetensors"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "out.safetensors: could not be written: " in ended.stderr
    assert "File too large" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["attempts", "checkpoints"]


def test_the_command_is_the_one_of_the_package(tmp_path: Path) -> None:
    """Started as an installed script is: a folder of the user's named trainer does not win."""
    (script,) = re.findall(
        r'^orchestrate-trainer = "([a-z_.]+:[a-z]+)"$', (ROOT / "pyproject.toml").read_text(), re.M
    )
    module, function = script.split(":")
    bin_dir, home = tmp_path / "bin", tmp_path / "home"
    bin_dir.mkdir()
    (home / "trainer").mkdir(parents=True)
    (home / "trainer" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    file = bin_dir / "orchestrate-trainer"
    file.write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    save(tmp_path / "run")
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(file), "export", "../run", "out.safetensors"],
        cwd=home, capture_output=True, text=True, timeout=120, check=False,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert_whole(home / "out.safetensors")
