"""Where `orchestrate report` and `compare` may write."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from running import standing_run

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def run_dir(tmp_path: Path) -> Path:
    return standing_run(tmp_path, "one")


COMMANDS = [("report", "one"), ("compare", "one", "one"), ("compare", "one", "--csv")]


@pytest.mark.parametrize("argv", COMMANDS)
def test_what_it_wrote_may_be_written_over(cli: Cli, argv: tuple[str, ...]) -> None:
    for other in COMMANDS:
        assert cli(*other, "--out", "x")[0] == 0
        assert cli(*argv, "--out", "x")[0] == 0


@pytest.mark.parametrize("argv", COMMANDS)
@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_pipe_and_a_socket_stay_what_they_are(
    cli: Cli, tmp_path: Path, argv: tuple[str, ...], force: tuple[str, ...]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.html").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        for name in ("pipe", "socket", "link.html"):
            code, _, err = cli(*argv, "--out", name, *force)
            assert code == 2
            assert f"--out {name}: it is a device, pipe or socket; name a file" in err
        assert (tmp_path / "pipe").is_fifo()
        assert (tmp_path / "socket").is_socket()
    assert [path.name for path in tmp_path.glob(".*")] == []


@pytest.mark.parametrize("argv", COMMANDS)
def test_another_file_is_written_over_by_force_alone(
    cli: Cli, tmp_path: Path, argv: tuple[str, ...]
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("name: one\n")
    code, _, err = cli(*argv, "--out", "job.yaml")
    assert code == 2
    assert "--out job.yaml: it is there, and no page or table of" in err
    assert job.read_text() == "name: one\n"
    assert cli(*argv, "--out", "job.yaml", "--force")[0] == 0
    assert "one" in job.read_text() != "name: one\n"


def test_a_link_stays_and_its_file_is_written(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "page").write_text("")
    (tmp_path / "link").symlink_to("there/page")
    assert cli("report", "one", "--out", "link")[0] == 0
    assert (tmp_path / "link").is_symlink()
    assert "<h1>one</h1>" in (tmp_path / "there" / "page").read_text()


@pytest.mark.parametrize("argv", COMMANDS)
def test_an_empty_name_and_a_loose_link_are_faults(
    cli: Cli, tmp_path: Path, argv: tuple[str, ...]
) -> None:
    (tmp_path / "loose").symlink_to("nowhere")
    for name, words in (("", "it is empty"), ("loose", "a link that leads nowhere")):
        code, _, err = cli(*argv, "--out", name)
        assert code == 2
        assert words in err
