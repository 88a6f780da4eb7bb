"""`orchestrate report` and `compare`: runs in every state become pages, and mistakes get words."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from running import standing_run

Cli = Callable[..., tuple[int, str, str]]
JOB = """\
name: one
train:
  model: {preset: nano}
  data: {python_docs: true}
  steps: 40
"""
TOKEN = "hf_" + "a1B2" * 9


def line(step: int, loss: float, attempt: int = 1) -> str:
    return json.dumps({"step": step, "attempt": attempt, "loss": loss, "losses": [loss]}) + "\n"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = standing_run(tmp_path, "one")
    (folder / "job.yaml").write_text(JOB)
    (folder / "metrics.jsonl").write_text("".join(line(n, 5 - n / 10) for n in range(1, 21)))
    return folder


def report(cli: Cli, *argv: str) -> str:
    code, out, err = cli("report", "one", "--out", "-", *argv)
    assert code == 0, err
    return out


def test_the_page_lies_where_it_is_wanted(cli: Cli, run_dir: Path, tmp_path: Path) -> None:
    code, out, _ = cli("report", "one")
    assert code == 0
    assert out.startswith("one-report.html: ")
    assert cli("report", str(run_dir), "--out", "other.html")[0] == 0
    page = (tmp_path / "one-report.html").read_bytes()
    assert page == (tmp_path / "other.html").read_bytes() == report(cli).encode()
    assert b"preset: nano" in page
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_run_in_progress_has_half_a_last_line(cli: Cli, run_dir: Path) -> None:
    whole = report(cli)
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(line(21, 9.0)[:20])
    assert report(cli) == whole


@pytest.mark.parametrize("content", [b"", b"\xff\x00\n[]\n{", None])
def test_a_run_without_metrics_has_a_page(cli: Cli, run_dir: Path, content: bytes | None) -> None:
    (run_dir / "metrics.jsonl").unlink()
    if content is not None:
        (run_dir / "metrics.jsonl").write_bytes(content)
    assert "No step has been told yet" in report(cli)


def test_files_that_are_no_such_files_do_not_hinder(cli: Cli, run_dir: Path) -> None:
    for name in ("goodput.jsonl", "plan.json", "attempts", "rendered", "supervisor.json"):
        (run_dir / name).unlink(missing_ok=True)
        (run_dir / name).write_bytes(b"\xff[1, 2")
    (run_dir / "metrics.jsonl").unlink()
    (run_dir / "metrics.jsonl").mkdir()
    page = report(cli)
    for words in ("metrics.jsonl: a folder", "attempts: a file", "plan.json: no JSON object"):
        assert f"<li>{words}" in page


def test_many_attempts(cli: Cli, run_dir: Path) -> None:
    for number in range(1, 701):
        folder = run_dir / "attempts" / str(number)
        folder.mkdir(parents=True)
        end = {"code": 1 if number < 700 else 0, "reason": f"reason {number}"}
        (folder / "end.json").write_text(json.dumps(end))
    page = report(cli)
    assert "200 older attempts are left out" in page
    assert "reason 699" in page
    assert "reason 3<" not in page


def test_what_local_supervision_knows_of_a_lost_attempt(cli: Cli, run_dir: Path) -> None:
    (run_dir / "attempts" / "1").mkdir(parents=True)
    record = json.loads((run_dir / "supervisor.json").read_text())
    record["ended"] = [{"attempt": 1, "code": 1, "reason": "no node said why"}]
    (run_dir / "supervisor.json").write_text(json.dumps(record))
    assert "no node said why" in report(cli)


def test_variables_are_shown_and_secrets_are_not(cli: Cli, run_dir: Path) -> None:
    (run_dir / "rendered").mkdir()
    script = f"export NOTE='a b'\nexport HF_TOKEN=lower\nexport OTHER={TOKEN}\n"
    (run_dir / "rendered" / "node.sh").write_text(script)
    pod = "a: [{name: SEEN, value: yes-it-is}, {name: DB_PASSWORD, value: open sesame}]\n"
    (run_dir / "rendered" / "job.yaml").write_text(pod)
    (run_dir / "job.yaml").write_text(JOB + f"env:\n  WANDB_API_KEY: {'q7' * 8}\n")
    page = report(cli)
    for seen in ("<td>a b</td>", "<td>yes-it-is</td>", "WANDB_API_KEY", "***"):
        assert seen in page
    for hidden in ("lower", TOKEN, "open sesame", "q7q7"):
        assert hidden not in page


def test_the_plan_beside_what_was_measured(cli: Cli, run_dir: Path) -> None:
    memory = {"total_bytes": 4e9, "lines": {"gradients": 1e9}}
    plan = {"tokens_per_s": 200, "memory": memory, "left_out": ["a", "b"], "step_s": None}
    (run_dir / "plan.json").write_text(json.dumps(plan))
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 30, "tokens_per_s": 150, "peak_memory_bytes": 2e9}) + "\n")
    page = report(cli)
    assert "<td>200</td><td>150</td><td>0.75</td>" in page
    assert "<td>4 GB</td><td>2 GB</td><td>0.50</td>" in page
    assert '<th scope="row">memory.lines.gradients</th><td>1 GB</td>' in page
    assert "<td>a; b</td>" in page


def test_an_element_of_a_sweep_has_the_job_file_of_its_sweep(cli: Cli, tmp_path: Path) -> None:
    element = standing_run(tmp_path, "tune/3")
    receipt = {"version": 1, "backend": "local", "is_element": True}
    (element / "receipt.json").write_text(json.dumps(receipt))
    (tmp_path / "runs" / "tune" / "job.yaml").write_text(JOB)
    code, page, err = cli("report", "tune/3", "--out", "-")
    assert code == 0, err
    assert "<h1>tune/3</h1>" in page
    assert "preset: nano" in page
    assert cli("report", "tune/3")[1].startswith("tune-3-report.html: ")


def test_two_runs_together(cli: Cli, run_dir: Path, tmp_path: Path) -> None:
    other = standing_run(tmp_path, "two")
    (other / "job.yaml").write_text(JOB.replace("one", "two").replace("40", "50"))
    (other / "metrics.jsonl").write_text(line(1, 4.0))
    assert cli("compare", "one", "two")[0] == 0
    page = (tmp_path / "compare.html").read_text()
    assert "Training loss by step" in page
    assert "train.steps" in page
    code, out, _ = cli("compare", "one", "two", "--csv")
    assert code == 0
    first, second = csv.DictReader(io.StringIO(out))
    assert (first["run"], first["loss"], first["train.steps"]) == ("one", "3.0", "40")
    assert (second["run"], second["loss"], second["train.steps"]) == ("two", "4.0", "50")


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("report", "none"), 2, "no run 'none'"),
        (("report", "one", "--out", "no/such/x.html"), 2, "there is no folder no/such"),
        (("report", "one", "--out", "."), 2, "it is a folder; name a file"),
        (("report", "sweep"), 2, "sweep is a sweep: give one of its elements, sweep/0 to sweep/2"),
        (("compare", "one", "none"), 2, "no run 'none'"),
        (("compare", *["one"] * 41), 2, "41 runs: at most 40"),
        (("compare",), 2, "Missing argument"),
    ],
)
def test_mistakes_get_words(
    cli: Cli, run_dir: Path, tmp_path: Path, argv: tuple[str, ...], code: int, words: str
) -> None:
    sweep = standing_run(tmp_path, "sweep")
    (sweep / "receipt.json").write_text('{"version": 1, "backend": "local", "num_elements": 3}')
    found, _, err = cli(*argv)
    assert found == code
    assert words in err
