"""A vendor's script: read by the real bash, what it exports reaches the ranks."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from running import Nodes, rank_process
from trainer import node

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    (tmp_path / "run").mkdir()
    made = Nodes(tmp_path / "run", tmp_path)
    yield made
    made.close()


def script(folder: Path, text: str, name: str = "set_env.sh") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@given(value=TEXTS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_comes_through(tmp_path: Path, value: str) -> None:
    os.environ.pop("NCCL_TUNER", None)
    assert node.source(script(tmp_path, f"export NCCL_TUNER={shlex.quote(value)}\n")) == ""
    assert os.environ["NCCL_TUNER"] == value


def test_what_was_set_before_holds_but_for_the_search_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.environ.update(NCCL_IB_TC="41", LD_LIBRARY_PATH="/old")
    text = """NCCL_IB_TC=52; NCCL_NET=gIB; HIDDEN=1; export NCCL_NET
    export LD_LIBRARY_PATH=/usr/local/gib/lib64:$LD_LIBRARY_PATH; cd /; echo to the terminal"""
    assert node.source(script(tmp_path, text)) == ""
    assert os.environ["NCCL_IB_TC"] == "41"
    assert os.environ["NCCL_NET"] == "gIB"
    assert "HIDDEN" not in os.environ
    node.put_in_front(["/usr/local/gib/lib64", "/none"])
    assert os.environ["LD_LIBRARY_PATH"] == "/usr/local/gib/lib64:/none:/old"
    said = capsys.readouterr().err
    assert "set_env.sh has set LD_LIBRARY_PATH, NCCL_NET\n" in said
    assert "there is no /usr/local/gib/lib64, /none: the fabric's libraries" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo no plug-in >&2; return 3", "ended with code 3; its last lines: no plug-in"),
        ("set -e; echo a; false; echo b", "ended with code 1; its last lines: a"),
        ("exit 0", "left the shell that read it; its last lines: (none)"),
        ("if", "syntax error"),
        ("kill -TERM $$; sleep 9", "was killed by signal 15 (SIGTERM)"),
    ],
)
def test_a_script_that_fails_is_told_with_its_last_lines(
    tmp_path: Path, text: str, words: str
) -> None:
    assert words in node.source(script(tmp_path, f"export NCCL_NET=x\n{text}\n"))
    assert "NCCL_NET" not in os.environ


def test_a_script_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "SCRIPT_TIMEOUT_S", 0.3)
    fault = node.source(script(tmp_path, "sleep 600 & echo begun; sleep 600\n"))
    assert fault.endswith("did not end within 0.3 s; its last lines: begun")


def test_its_path_is_a_path_and_no_command(tmp_path: Path) -> None:
    name = "a b'; touch gone #$(touch gone)\n\"`touch gone`"
    assert node.source(script(tmp_path, 'export NCCL_NET="$0,$#"\n', name)) == ""
    assert os.environ["NCCL_NET"] == "bash,0"
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert not Path("gone").exists()


def test_the_ranks_have_its_variables(nodes: Nodes, tmp_path: Path) -> None:
    nodes.nnodes, nodes.nproc, nodes.mode = 1, 1, "wait"
    nodes.start(0, source=script(tmp_path, "export NCCL_NET='AWS Libfabric'\n"))
    nodes.wait_ready()
    pid = rank_process(nodes.started[0].pid, 0).pid
    assert b"\0NCCL_NET=AWS Libfabric\0" in Path(f"/proc/{pid}/environ").read_bytes()


def test_a_script_that_one_node_lacks_ends_all_as_a_configuration(
    nodes: Nodes, tmp_path: Path
) -> None:
    nodes.start(0, source=script(tmp_path, "export NCCL_NET=gIB\n"))
    nodes.start(1, source=tmp_path / "none.sh")
    assert nodes.codes() == {0: 78, 1: 78}, nodes.all_logs()
    for number in (0, 1):
        log = nodes.log(number).read_text()
        assert f"node 1 ({os.uname().nodename}): there is no {tmp_path}/none.sh, which the" in log
    assert not (nodes.run_dir / "attempts").exists()
