"""The command line as a user meets it: what it prints and what it leaves with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from running import wait_until

GOOD = """\
name: good
train:
  model: {preset: nano}
  data: {synthetic: {samples: 64}}
  steps: 5
"""

FIVE_FAULTS = """\
name: Faulty
resources:
  node: 2
  memory: 512m
timeouts:
  step: 90
train:
  model: {preset: nano}
  data: {synthetic: {samples: 64}}
  steps: many
"""

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def good(tmp_path: Path) -> str:
    (tmp_path / "good.yaml").write_text(GOOD)
    return "good.yaml"


def test_five_faults_are_five_located_faults_and_exit_code_2(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "faulty.yaml").write_text(FIVE_FAULTS)
    code, out, err = cli("validate", "faulty.yaml")
    assert (code, out) == (2, "")
    places = [line.split(" ")[0] for line in err.splitlines() if line.startswith("faulty.yaml:")]
    assert places == [
        "faulty.yaml:1:7",
        "faulty.yaml:3:3",
        "faulty.yaml:4:11",
        "faulty.yaml:6:9",
        "faulty.yaml:10:10",
    ]
    assert 'did you mean "nodes"?' in err
    assert "Traceback" not in err


def test_faults_as_json(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "faulty.yaml").write_text(FIVE_FAULTS)
    code, out, err = cli("validate", "faulty.yaml", "--json")
    report = json.loads(out)
    assert (code, err, report["valid"], len(report["faults"])) == (2, "", False, 5)
    assert report["faults"][1]["key"] == "resources.node"
    assert (report["faults"][1]["line"], report["faults"][1]["column"]) == (3, 3)


def test_a_valid_file_says_what_it_will_be(cli: Cli, good: str) -> None:
    code, out, _ = cli("validate", good, "--set", "resources.nodes=3")
    assert code == 0
    assert "3 nodes x 1 ranks" in out
    assert "cluster local (embedded profiles)" in out


def test_validate_as_json(cli: Cli, good: str) -> None:
    code, out, _ = cli("validate", good, "--json")
    assert (code, json.loads(out)) == (0, {"valid": True, "faults": [], "warnings": []})


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("validate", "missing.yaml"), "missing.yaml"),
        (("validate",), "Missing argument"),
        (("submmit", "job.yaml"), "Did you mean 'submit'?"),
        (("status", "nothing"), "no run 'nothing'"),
        (("logs", "nothing"), "orchestrate list"),
        (("cancel", "nothing"), "no run 'nothing'"),
        (("explain", "resources.nods"), "resources.nodes"),
        (("validate", "good.yaml", "--cluster", "lcal"), 'did you mean "local"?'),
        (("validate", "good.yaml", "--clusters", "none.yaml"), "none.yaml"),
        (("render", "good.yaml", "--target", "moon"), "no such target"),
        (("render", "good.yaml", "--set", "resources.nodes"), "--set"),
    ],
)
def test_a_mistake_gets_a_message_and_exit_code_2(
    cli: Cli, good: str, argv: tuple[str, ...], words: str
) -> None:
    code, _, err = cli(*argv)
    assert code == 2
    assert words in err
    assert "Traceback" not in err


def test_render_prints_what_it_writes(cli: Cli, good: str, tmp_path: Path) -> None:
    _, printed, _ = cli("render", good)
    _, _, _ = cli("render", good, "-o", "out")
    _, out, _ = cli("render", good, "--json")
    files = json.loads(out)["files"]
    assert files == {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert printed == "".join(f"# ---- {name}\n{text}" for name, text in files.items())


def test_variables_are_taken_at_submit_and_refused_at_render(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.yaml").write_text(GOOD + 'env: {WHERE: "${PLACE:-home}/x"}\n')
    code, _, err = cli("render", "job.yaml")
    assert code == 2
    assert "job.yaml:6:14 env.WHERE" in err
    assert "WHERE=home/x" in cli("submit", "job.yaml", "--dry-run")[1]
    monkeypatch.setenv("PLACE", "a'b $(touch gone)")
    assert """WHERE='a'"'"'b $(touch gone)/x'""" in cli("submit", "job.yaml", "--dry-run")[1]


def test_an_unset_variable_is_reported_with_the_other_faults(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(FIVE_FAULTS + 'env: {WHERE: "${NOT_SET_ANYWHERE}"}\n')
    code, _, err = cli("submit", "job.yaml", "--dry-run")
    assert code == 2
    assert "6 faults" in err


def test_a_dry_run_leaves_nothing_behind(cli: Cli, good: str, tmp_path: Path) -> None:
    assert cli("submit", good, "--dry-run")[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == [good]


def test_init_writes_a_job_that_is_valid(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli("init", "jobs/My first_job.yaml")
    assert code == 0
    assert "orchestrate submit" in out
    text = (tmp_path / "jobs" / "My first_job.yaml").read_text()
    assert "name: my-first-job\n" in text
    assert text.startswith("# yaml-language-server: $schema=.orchestrate.schema.json\n")
    assert cli("validate", "jobs/My first_job.yaml")[0] == 0
    assert cli("init", "jobs/My first_job.yaml")[0] == 2
    assert cli("init", "jobs/My first_job.yaml", "--force")[0] == 0


def test_the_schema_takes_what_validate_takes(cli: Cli) -> None:
    _, out, _ = cli("schema")
    schema: dict[str, Any] = json.loads(out)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    job = {
        "name": "good",
        "train": {"model": {"preset": "nano"}, "data": {"python_docs": True}, "steps": 5},
    }
    assert validator.is_valid(job)
    assert not validator.is_valid({**job, "resources": {"node": 2}})
    assert not validator.is_valid({**job, "timeouts": {"step": 90}})


def test_explain_says_which_layer_won(cli: Cli, good: str) -> None:
    _, out, _ = cli("explain", "train.steps", good, "--json")
    assert (json.loads(out)["value"], json.loads(out)["from"]) == (5, "good.yaml:5:3")
    _, out, _ = cli("explain", "train.steps", good, "--set", "train.steps=7", "--json")
    assert (json.loads(out)["value"], json.loads(out)["from"]) == (7, "--set")
    _, out, _ = cli("explain", "timeouts.step", good)
    assert "(from default)" in out


def test_explain_says_what_the_best_interval_rests_on(cli: Cli, good: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "clusters:\n  mine: {target: slurm, mean_time_between_failures: 30d}\n"
    )
    ask = ("explain", "checkpoint.every", good, "--set", "resources.nodes=4")
    _, out, _ = cli(*ask)
    assert "value: 100 (from default)" in out
    assert "fails" not in out
    _, out, _ = cli(*ask, "--set", "checkpoint.every=auto")
    assert "a node fails every 154d on average (from default), the job every 38d12h" in out
    _, out, _ = cli(*ask, "--set", "checkpoint.every=auto", "--clusters", "c.yaml", "--json")
    assert json.loads(out)["mean_time_between_failures"] == {
        "node_s": 30 * 86400,
        "job_s": 7.5 * 86400,
        "from": "profile mine (c.yaml:2:25)",
    }


def test_explain_knows_a_key_that_is_a_word_of_pythons(cli: Cli, good: str) -> None:
    _, out, _ = cli("explain", "checkpoint.async", good, "--set", "checkpoint.async=true", "--json")
    assert (json.loads(out)["value"], json.loads(out)["from"]) == (True, "--set")


def test_a_profile_in_the_working_folder_needs_trust(cli: Cli, good: str, tmp_path: Path) -> None:
    clusters = "clusters:\n  here: {target: local, defaults: {train: {seed: 5}}}\n"
    (tmp_path / "clusters.yaml").write_text(clusters)
    code, out, err = cli("validate", good)
    assert (code, "embedded" in out, "clusters.yaml" in err) == (0, True, True)
    assert cli("trust", "clusters.yaml")[0] == 0
    assert "cluster here" in cli("validate", good)[1]
    _, out, _ = cli("explain", "train.seed", good, "--json")
    assert json.loads(out)["value"] == 5
    (tmp_path / "clusters.yaml").write_text(clusters + "# changed\n")
    assert "embedded" in cli("validate", good)[1]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(cli: Cli, shell: str) -> None:
    code, out, _ = cli("completion", shell)
    assert code == 0
    assert "_ORCHESTRATE_COMPLETE" in out


def test_list_of_an_empty_place(cli: Cli) -> None:
    code, out, _ = cli("list")
    assert code == 0
    assert "no runs under runs" in out
    assert json.loads(cli("list", "--json")[1]) == []


def test_a_reader_that_goes_away_is_no_error(good: str, tmp_path: Path) -> None:
    """`orchestrate schema | head -1` ends without a traceback."""
    code = "from orchestrator.cli import main; main(['schema'])"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) == 1


@pytest.mark.e2e
@pytest.mark.timeout(280)
def test_a_run_from_submit_to_its_second_submit(tmp_path: Path, good: str) -> None:
    """submit, watch and Ctrl-C, status, logs, list, and a second submit of the finished run."""

    def orchestrate(*argv: str) -> str:
        code = "import sys; from orchestrator.cli import main; main(sys.argv[1:])"
        command = [sys.executable, "-c", code, *argv]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    assert "watch" in orchestrate("submit", good)
    plan = json.loads((tmp_path / "runs" / "good" / "plan.json").read_bytes())
    assert plan["memory"]["total_bytes"] > 0
    unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
    watcher = subprocess.Popen(
        [sys.executable, "-c", "from orchestrator.cli import main; main(['watch', 'good'])"],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=unbuffered,
    )  # fmt: skip
    assert watcher.stdout is not None
    assert "good: " in watcher.stdout.readline()
    watcher.send_signal(signal.SIGINT)
    assert "good goes on" in watcher.communicate(timeout=30)[0]
    assert watcher.returncode == 130
    wait_until((tmp_path / "runs/good/DONE").exists, "the end of the run", 240)
    last_words = orchestrate("watch", "good")
    assert "good: DONE" in last_words
    assert json.loads(orchestrate("status", "good", "--json"))[0]["state"] == "DONE"
    assert "good  DONE" in orchestrate("list")
    log = orchestrate("logs", "good", "--rank", "0")
    assert all(line.startswith("[1] rank 0 | ") for line in log.splitlines())
    assert '"event": "end"' in log
    assert "done" in orchestrate("submit", good, "--watch").lower()
    assert [path.name for path in (tmp_path / "runs/good/attempts").iterdir()] == ["1"]


def test_no_command_module_hides_a_builtin() -> None:
    """A submodule becomes an attribute of the package: `list` there would break list()."""
    import builtins

    from orchestrator.cli import COMMANDS

    assert not set(COMMANDS.values()) & set(dir(builtins))
