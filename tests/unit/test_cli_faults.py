"""What goes wrong at the command line: one line, the right exit code, and JSON where asked for."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli import submit

Cli = Callable[..., tuple[int, str, str]]
MAIN = "import sys; from orchestrator.cli import main; main(sys.argv[1:])"
GOOD = """\
name: good
train:
  model: {preset: nano}
  data: {synthetic: {samples: 64}}
  steps: 5
"""


@pytest.fixture
def good(tmp_path: Path) -> str:
    (tmp_path / "good.yaml").write_text(GOOD)
    return "good.yaml"


@pytest.mark.parametrize("argv", [["list"], ["explain"], ["schema"]])
def test_a_full_disk_is_one_line(tmp_path: Path, argv: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, *argv],
            cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "failed: No space left on device\n")


def test_no_standard_output_at_all_is_no_fault(tmp_path: Path) -> None:
    words = shlex.join([sys.executable, "-c", MAIN, "list"])
    shell = ["bash", "-c", f"{words} >&-"]
    done = subprocess.run(shell, cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_file_name_that_is_no_utf8_can_be_shown(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(GOOD)
    name = os.fsdecode(b"\xff\x1b.yaml")
    (tmp_path / "job.yaml").rename(tmp_path / name)
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "validate", name],
        cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"??.yaml: valid")


def test_a_folder_that_cannot_be_made_is_named(
    cli: Cli, good: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc")
    code, _, err = cli("trust", good)
    assert code == 2
    assert "/proc/orchestrate/trusted: cannot write" in err
    assert "XDG_CONFIG_HOME" in err


@pytest.mark.parametrize(
    "argv", [("status", "\x1b]0;x\x07"), ("validate", "a\x1b[2J"), ("init", "a", "b\x1b[2J")]
)
def test_a_message_cannot_steer_a_terminal(cli: Cli, argv: tuple[str, ...]) -> None:
    code, _, err = cli(*argv)
    assert code == 2
    assert err.strip()
    assert "\x1b" not in err


@pytest.mark.parametrize("argv", [("list",), ("status", "x"), ("status", "~nobody-here/x")])
def test_a_home_that_is_not_there_is_named(cli: Cli, tmp_path: Path, argv: tuple[str, ...]) -> None:
    text = "clusters:\n  here: {target: local, runs_root: '~nobody-here/runs'}\n"
    (tmp_path / "c.yaml").write_text(text)
    code, _, err = cli(*argv, "--clusters", "c.yaml")
    assert code == 2
    assert "~nobody-here" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["validate", "render", "explain"])
@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("missing.yaml",), "missing.yaml: no such file"),
        (("good.yaml", "--cluster", "lcal"), 'did you mean "local"?'),
        (("good.yaml", "--clusters", "none.yaml"), "none.yaml"),
        (("good.yaml", "--set", "train.steps=many"), "a whole number belongs here"),
    ],
)
def test_every_fault_is_json_where_json_was_asked_for(
    cli: Cli, good: str, command: str, more: tuple[str, ...], words: str
) -> None:
    key = ("train.steps",) if command == "explain" else ()
    code, out, err = cli(command, *key, *more, "--json")
    report = json.loads(out)
    assert (code, err, report["valid"]) == (2, "", False)
    assert words in report["faults"][0]["message"]


def test_a_runs_root_that_cannot_be_read_is_one_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to("runs")
    code, out, err = cli("list")
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert "Too many levels of symbolic links" in err
    code, out, _ = cli("list", "--json")
    assert (code, json.loads(out)["faults"][0]["message"]) == (1, err.strip().split(": ", 1)[1])


def test_what_render_refuses_is_json_too(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(GOOD + 'env: {A: "${B}"}\n')
    code, out, _ = cli("render", "job.yaml", "--json")
    assert (code, json.loads(out)["faults"][0]["key"]) == (2, "env.A")
    code, out, _ = cli("status", "nothing", "--json")
    assert (code, json.loads(out)["valid"]) == (2, False)


TYPED = [
    'name: "${X}"', 'timeouts: {step: "${X}"}', 'resources: {memory: "${X}"}',
    'network: {backend: "${X}"}', 'network: {interface: "${X}"}',
    'parallelism: {precision: "${X}"}',
]  # fmt: skip
VALUES = ["good", "5m", "1GiB", "gloo", "lo", "bf16"]


@pytest.mark.parametrize(("line", "value"), list(zip(TYPED, VALUES, strict=True)))
def test_submit_refuses_a_variable_where_validate_does(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, value: str
) -> None:
    monkeypatch.setenv("X", value)
    text = GOOD.replace("name: good", line) if line.startswith("name") else f"{GOOD}{line}\n"
    (tmp_path / "job.yaml").write_text(text)
    validated, submitted = cli("validate", "job.yaml"), cli("submit", "job.yaml", "--dry-run")
    assert validated[0] == submitted[0] == 2
    assert validated[2] == submitted[2]
    assert "variables work in free texts only" in submitted[2]
    assert "--set" in submitted[2]


def test_what_a_variable_stands_for_is_checked_too(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTHING", "")
    text = GOOD.replace("{synthetic: {samples: 64}}", '{text: "${NOTHING}"}')
    (tmp_path / "job.yaml").write_text(text)
    assert cli("validate", "job.yaml")[0] == 0
    assert cli("submit", "job.yaml", "--dry-run")[0] == 2


@pytest.mark.parametrize("name", ["null", "true", "nan", "false"])
def test_init_quotes_a_name_that_yaml_would_read_otherwise(
    cli: Cli, tmp_path: Path, name: str
) -> None:
    assert cli("init", "job.yaml", "--name", name)[0] == 0
    assert f"{name}: 2 nodes" in cli("validate", "job.yaml")[1]
    assert cli("init", f"{name}.yaml")[0] == 0
    assert cli("validate", f"{name}.yaml")[0] == 0


@pytest.mark.parametrize("name", ["Bad Name", "x: y", "12", "", "a\nb", "-a", "a" * 53])
def test_init_refuses_a_name_that_validate_refuses(cli: Cli, tmp_path: Path, name: str) -> None:
    code, _, err = cli("init", "job.yaml", f"--name={name}")
    assert code == 2
    assert "is not a name" in err
    assert not (tmp_path / "job.yaml").exists()


def test_init_refuses_a_file_name_that_would_break_the_file(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("init", "a\nname: b\n.yaml")
    assert (code, len(err.splitlines())) == (2, 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file", ["my job.yaml", "-x.yaml", "it's $HOME.yaml", "sub dir/a.yaml"])
def test_what_init_says_next_can_be_pasted(cli: Cli, tmp_path: Path, file: str) -> None:
    code, out, _ = cli("init", "--", file)
    assert code == 0
    words = shlex.split(out.rpartition("next: orchestrate ")[2])
    assert words[0] == "submit"
    assert cli("validate", words[1])[0] == 0
    comment = (tmp_path / file).read_text().splitlines()[1]
    inside = shlex.split(comment.partition("validate ")[2].partition("      Run")[0])
    assert (tmp_path / file).parent / inside[0] == tmp_path / file


def test_explain_without_a_key_lists_all(cli: Cli) -> None:
    code, out, _ = cli("explain")
    assert code == 0
    listed = [line.split()[0] for line in out.splitlines()]
    assert {"name", "resources.nodes", "train.model.preset"} <= set(listed)
    assert [words["key"] for words in json.loads(cli("explain", "--json")[1])] == listed


def test_more_ranks_than_this_machine_can_stand_for(cli: Cli, good: str, tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    ranks = submit.RANKS_PER_CORE * cores + 1
    argv = ("submit", good, "--dry-run", "--set", f"resources.nodes={ranks}")
    code, _, err = cli(*argv)
    assert code == 2
    assert f"are {ranks} processes, and this machine has {cores} core(s)" in err
    assert "--set resources.nodes=" in err
    assert cli("submit", good, "--dry-run", "--set", f"resources.nodes={ranks - 1}")[0] == 0
    assert cli(*argv, "--cluster", "slurm")[0] == 0
    assert cli("validate", good, "--set", f"resources.nodes={ranks}")[0] == 0
