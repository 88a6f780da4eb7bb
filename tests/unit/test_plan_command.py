"""`orchestrate plan`: what it prints, and with which exit code."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.backends import load_backend
from orchestrator.backends.base import Handle
from orchestrator.cli import orchestrate
from orchestrator.cli.common import load_job
from orchestrator.cli.planning import keep_plan
from orchestrator.errors import UserError
from orchestrator.estimate.grid import AXES, MOST_CELLS, parse_axes
from orchestrator.estimate.lines import KEYS, yaml_lines
from orchestrator.source import parse_document

JOB = """\
name: plan
resources: {nodes: 2, gpus_per_node: 8}
parallelism:
  strategy: full_shard
  precision: bf16
train:
  model: {layers: 32, heads: 32, width: 4096, context: 2048, vocab_size: 50304}
  data: {python_docs: true}
  batch: {micro: 2}
  steps: 10000
"""
CLUSTERS = """\
default: known
clusters:
  known:
    target: slurm
    hardware: {card: h100-sxm, between: {bandwidth: 10GB/s, latency: 5us}, price_per_gpu_hour: 2}
  unknown: {target: slurm}
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path, clusters = tmp_path / "job.yaml", tmp_path / "sites.yaml"
    path.write_text(JOB)
    clusters.write_text(CLUSTERS)
    monkeypatch.setenv("ORCHESTRATE_CLUSTERS", str(clusters))
    return path


def run(*words: object) -> Result:
    result = CliRunner().invoke(orchestrate, ["plan", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def answer(*words: object) -> dict[str, Any]:
    found = json.loads(run(*words, "--json").stdout)
    assert isinstance(found, dict)
    return found


def test_the_text_has_figures_and_advice(job: Path) -> None:
    text = run(job).stdout
    for words in ("MEMORY of the fullest rank", "TRAFFIC of a rank", "TIME", "ADVICE",
                  "optimizer state", "of 79.6 GiB: fits", "between nodes", "tokens/s",
                  "by price_per_gpu_hour", "the limit", "write into the job file:",
                  "      strategy: hybrid_shard", "next best:"):  # fmt: skip
        assert words in text, words


def test_the_lines_of_the_advice_are_taken_by_the_job_file(job: Path) -> None:
    found = answer(job)
    sets = [f"--set={key}={value}" for key, value in found["advice"]["best"]["set"].items()]
    assert "--set=parallelism.strategy=hybrid_shard" in sets
    again = answer(job, *sets)
    assert again["setting"] == found["advice"]["best"]["setting"]
    assert again["advice"]["best"]["set"] == {}
    assert again["step_s"] == found["advice"]["best"]["step_s"] < found["step_s"]


def test_json_has_what_a_report_reads(job: Path) -> None:
    found = answer(job)
    assert found["memory"]["total_bytes"] == sum(found["memory"]["lines"].values())
    assert found["memory"]["card_bytes"] == 81559 * 2**20
    assert found["fits"] is True
    assert found["tokens_per_s"] == pytest.approx(16 * 2 * 2048 / found["step_s"])
    assert found["traffic"]["between_bytes"] > 0 == found["traffic"]["inside_bytes"]
    assert found["pace"]["cost"] == pytest.approx(found["pace"]["total_s"] / 3600 * 16 * 2)


def test_the_docs_name_all_that_json_has(job: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "planner.md").read_text()
    passage = text.partition("## For programs")[2].partition("\n## ")[0]
    found = answer(job, "--compare", "nodes=1")
    names = {*found, *found["memory"], *found["traffic"], *found["advice"], *found["compared"][0]}
    names |= found["advice"]["best"].keys()
    assert {name for name in names if f"`{name}`" not in passage} == set()


def test_without_hardware_memory_and_traffic_are_there_and_the_key_is_named(job: Path) -> None:
    text = run(job, "--cluster", "unknown").stdout
    assert "optimizer state" in text
    assert "reduce_scatter" in text
    assert "without the card's speed in bf16: resources.gpu_type" in text
    assert "the network between nodes: `hardware: {between: {bandwidth: 50GB/s}}`" in text
    found = answer(job, "--cluster", "unknown")
    assert found["fits"] is found["step_s"] is found["advice"]["best"] is None


def test_check_is_for_a_pipeline(job: Path) -> None:
    assert run(job, "--check").exit_code == 0
    assert run(job, "--check", "--set", "parallelism.strategy=ddp").exit_code == 1
    assert run(job, "--set", "parallelism.strategy=ddp").exit_code == 0
    assert "does NOT fit" in run(job, "--set", "parallelism.strategy=ddp").stdout


def test_compare_shows_what_fits_first_and_then_the_fastest(job: Path) -> None:
    axes = "strategy=ddp,full_shard,hybrid_shard;nodes=1,2"
    cells = answer(job, "--compare", axes)["compared"]
    assert len(cells) == 6
    speeds = [c["plan"]["tokens_per_s"] for c in cells if c["plan"] and c["plan"]["fits"]]
    assert speeds == sorted(speeds, reverse=True)
    kinds = [None if c["plan"] is None else c["plan"]["fits"] for c in cells]
    assert kinds == [True] * 3 + [False] * 2 + [None]
    lines = run(job, "--compare", axes).stdout.splitlines()
    assert lines[0].split()[:3] == ["STRATEGY", "NODES", "MEMORY"]
    assert lines[-1].startswith("not possible: strategy=hybrid_shard, nodes=1: ")


@pytest.mark.parametrize(
    ("axes", "words"),
    [("strategy", "has no ="), ("strateg=ddp", "did you mean strategy"),
     ("strategy=fsdp3", "none of ddp, shard_grad_op"), ("nodes=0", "no whole number from 1"),
     ("nodes=1;micro=" + ",".join(map(str, range(1, MOST_CELLS + 2))), "at most 500"),
     ("offload=yes", "none of false, true")],
)  # fmt: skip
def test_what_compare_cannot_read_is_told(axes: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_axes(axes)


@given(st.text(st.sampled_from("strategymicnodep=;, 0123ddp"), max_size=40))
def test_any_text_is_axes_or_is_refused(text: str) -> None:
    with contextlib.suppress(UserError):
        axes = parse_axes(text)
        assert axes.keys() <= AXES.keys()
        assert all(axes.values())


@given(
    st.dictionaries(
        st.sampled_from(sorted(KEYS.values())), st.booleans() | st.integers(1, 99), min_size=1
    )
)
def test_the_lines_to_write_hold_the_values(found: dict[str, Any]) -> None:
    data: dict[str, Any] = parse_document("\n".join(yaml_lines(found)).encode(), "lines").data
    for key, value in found.items():
        section: Any = data
        for part in key.split("."):
            section = section[part]
        assert section == value


def test_a_sweep_is_said_to_be_left_out(job: Path) -> None:
    job.write_text(JOB + "sweep: {grid: {train.seed: [1, 2]}}\n")
    assert "the sweep's elements" in run(job).stdout


@pytest.mark.parametrize("suffix", ["svg", "png", "PNG"])
def test_plot_draws_memory_and_traffic(job: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib", reason="pip install 'orchestrate-training[report]'")
    files = [job.with_name(f"{name}.{suffix}") for name in "ab"]
    for file in files:
        run(job, "--plot", file)
    first, second = (file.read_bytes() for file in files)
    assert first[:4] == (b"\x89PNG" if suffix != "svg" else b"<?xm")
    if suffix == "svg":
        assert first == second
        for words in (b"h100-sxm: 79.6 GiB", b"hybrid_shard", b"between nodes", b"optimizer"):
            assert words in first


def test_plot_without_matplotlib_says_what_to_install(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"pip install 'orchestrate-training\[report\]'"):
        CliRunner().invoke(
            orchestrate, ["plan", str(job), "--plot", "x.png"], catch_exceptions=False
        )


def test_a_submit_keeps_the_plan_and_does_without_one_it_cannot_make(job: Path) -> None:
    folder = job.with_name("run")
    folder.mkdir()
    backend, handle = load_backend("local", None), Handle("local", "plan", folder)
    loaded = load_job(job, None, None, [])
    keep_plan(backend, handle, loaded, job)
    kept = json.loads((folder / "plan.json").read_bytes())
    said = answer(job)
    assert kept == {name: said[name] for name in kept}
    (folder / "plan.json").unlink()
    job.write_text(JOB.replace(
        "{layers: 32, heads: 32, width: 4096, context: 2048, vocab_size: 50304}",
        "{factory: mine:make, context: 128}",
    ))  # fmt: skip
    keep_plan(backend, handle, load_job(job, None, None, []), job)
    assert list(folder.iterdir()) == []
