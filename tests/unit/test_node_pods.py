"""node.py in what a pod is: names that come late, process 1, a user without a name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from running import Nodes, read, wait_until
from trainer import node

NEEDS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0, reason="private mounts need root: run this file as root, or in a container"
)
NAMES = ["demo-node-0-0", "demo-node-0-0.demo", "demo-node-0-0.demo.team.svc.cluster.local"]
ON_KUBERNETES = ("--repeat-codes-from", "128")
# Its arguments: a hosts file, an nsswitch.conf, the pod's host name, and the command.
WITH_NAMES = """\
mount --bind "$1" /etc/hosts && mount --bind "$2" /etc/nsswitch.conf && hostname "$3" && shift 3 &&
exec "$@"
"""
READ_ONLY = """\
mount --bind /tmp /tmp && mount --bind "$1" "$1" && mount -o remount,bind,ro / && shift && exec "$@"
"""
PRIVATE = ("unshare", "--mount", "--uts", "--propagation", "private", "sh", "-c")
FIRST_PROCESS = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@dataclass
class Pods(Nodes):
    """Nodes that are each started below a command that makes the pod."""

    enter: Callable[[int], tuple[str, ...]] = lambda _node: ()

    def command(self, node: int, **changes: object) -> list[str]:
        return [*self.enter(node), *super().command(node, **changes)]


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    (tmp_path / "work").mkdir()
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    made = Pods(run_dir, tmp_path / "work", nproc=1, also=ON_KUBERNETES)
    yield made
    made.close()


def says(pods: Pods, node: int, words: str) -> Callable[[], bool]:
    return lambda: words in pods.log(node).read_text()


# --- names -------------------------------------------------------------------------------------


@pytest.fixture
def named(pods: Pods, tmp_path: Path) -> Pods:
    """Two pods that resolve what their files hosts-0 and hosts-1 say, which is nothing so far."""
    (tmp_path / "nsswitch").write_text("hosts: files\n")
    for number in (0, 1):
        (tmp_path / f"hosts-{number}").write_text("")

    def enter(number: int) -> tuple[str, ...]:
        files = (str(tmp_path / f"hosts-{number}"), str(tmp_path / "nsswitch"))
        return (*PRIVATE, WITH_NAMES, "sh", *files, f"demo-node-0-{number}")

    pods.enter = enter
    return pods


@NEEDS_ROOT
@pytest.mark.case("L02")
@pytest.mark.case("L35")
@pytest.mark.parametrize("name", NAMES)
def test_only_the_others_need_node_0s_name_and_it_and_its_port_may_come_late(
    named: Pods, tmp_path: Path, name: str
) -> None:
    named.start(1, head=name)
    wait_until(says(named, 1, f"waiting for node 0 at {name} port {named.port}: [Errno -"), "name")
    (tmp_path / "hosts-1").write_text(f"127.0.0.1 {name}\n")
    wait_until(says(named, 1, "Connection refused"), named.all_logs())
    named.start(0, head=name)
    assert named.codes() == {0: 0, 1: 0}, named.all_logs()


@NEEDS_ROOT
@pytest.mark.case("L35")
@pytest.mark.parametrize(
    ("hosts", "words"),
    [("", "Name or service not known"), ("127.0.0.1 demo", "Connection refused")],
)
def test_what_was_missing_at_the_end_of_the_time_is_named(
    named: Pods, tmp_path: Path, hosts: str, words: str
) -> None:
    (tmp_path / "hosts-1").write_text(hosts)
    named.start(1, head="demo", start_timeout_s=1)
    assert named.codes() == {1: 1}
    text = named.log(1).read_text()
    assert f"no go from node 0 at demo port {named.port} within 1 s: " in text
    assert words in text.splitlines()[-1]


@pytest.mark.e2e
@NEEDS_ROOT
@pytest.mark.case("L02")
def test_ranks_meet_without_any_name(named: Pods, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "hosts-1").write_text(f"127.0.0.1 {NAMES[1]}\n")
    named.agent = "torch.distributed.run"
    named.program = (sys.executable, str(Path(named.program[1]).with_name("group.py")))
    named.start(0, 1, head=NAMES[1])
    assert named.codes() == {0: 0, 1: 0}, named.all_logs()
    assert "the ranks add up to 1" in (named.run_dir / "attempts/1/logs/rank-00001.log").read_text()


@pytest.mark.case("L02")
def test_node_0_does_not_judge_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image's /etc/hosts may give the host's own name a loopback address."""
    monkeypatch.setenv("INDEX", "0")
    run_dir = tmp_path / "runs" / "demo"
    argv = [
        *("--run-dir", str(run_dir), "--make-run-dir", "--workdir", "/", "--nnodes", "3"),
        *("--node-rank-from", "INDEX", "--nproc-per-node", "1", "--head", "localhost"),
        *("--address", "192.0.2.1", "--port", "23456", "--id", "demo", "--start-timeout-s", "1"),
        *("--shutdown-timeout-s", "1"),
    ]
    args = node.parse([*argv, "--", "program"])
    assert (args.node_rank, args.address, run_dir.is_dir()) == (0, "192.0.2.1", True)
    with pytest.raises(node.Leave, match="localhost is a loopback address"):
        node.parse([*argv, "--node-rank-offset", "1", "--", "program"])
    monkeypatch.setenv("INDEX", "2")
    with pytest.raises(node.Leave, match="node 3 of 3"):
        node.parse([*argv, "--node-rank-offset", "1", "--", "program"])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--failures", "1"), "need --repeat-codes-from"),
        ((*ON_KUBERNETES, "--requeues", "-1"), "must be 0 or more"),
        (("--repeat-codes-from", "79"), "must be 80 to 176"),
        (("--repeat-codes-from", "177"), "must be 80 to 176"),
        ((*ON_KUBERNETES, "--time-limit-s", "soon"), "invalid float value"),
    ],
)
def test_arguments_are_checked(pods: Pods, more: tuple[str, ...], words: str) -> None:
    pods.also = more
    pods.start(0)
    assert pods.codes() == {0: 78}
    assert words in pods.log(0).read_text()


def test_a_run_folder_that_cannot_be_made_is_told(pods: Pods) -> None:
    pods.also = ("--make-run-dir", *ON_KUBERNETES)
    pods.start(0, run_dir=pods.log(0) / "run")
    assert pods.codes() == {0: 78}
    assert "cannot make the run folder: [Errno 20] Not a directory" in pods.log(0).read_text()


# --- process 1 ---------------------------------------------------------------------------------

LEAVES_ORPHANS = """
import os, sys, time
from pathlib import Path
attempt = Path(os.environ["ORCHESTRATE_RUN_DIR"], "attempts", "1")
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
(attempt / "ready-0").touch()
deadline = time.monotonic() + 120
while not (attempt / "drain").exists() and time.monotonic() < deadline:
    time.sleep(0.02)
sys.exit(3)
"""


@NEEDS_ROOT
@pytest.mark.case("L17")
def test_process_1_collects_orphans_and_keeps_the_ranks_code(pods: Pods) -> None:
    pods.nnodes, pods.enter = 1, lambda _node: FIRST_PROCESS
    pods.program = (sys.executable, "-c", LEAVES_ORPHANS)
    pods.start(0)
    pods.wait_ready()
    first = children(pods.started[0].pid)[0]
    wait_until(lambda: len(children(first)) == 1, "torchrun alone is left")
    os.kill(first, signal.SIGTERM)
    assert pods.codes() == {0: 1}, pods.all_logs()
    reason = read(pods.run_dir / "attempts/1/end.json")["reason"]
    # torchrun may collect the rank before node.py has read its code.
    assert reason.endswith(("it ended with code 3", "it ended first"))


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# --- the user ----------------------------------------------------------------------------------


@pytest.mark.e2e
@NEEDS_ROOT
def test_a_user_without_a_name_or_home_on_a_read_only_file_system(
    pods: Pods, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    nobody = ("unshare", "--map-user=12345", "--map-group=12345", "env")
    unset = [part for name in ("HOME", "USER", "LOGNAME") for part in ("-u", name)]
    pods.enter = lambda _node: (*PRIVATE, READ_ONLY, "sh", str(tmp_path), *nobody, *unset)
    who = subprocess.run(
        [*pods.enter(0), sys.executable, "-c", WHO], capture_output=True, text=True, check=True
    )
    assert who.stdout.split() == ["12345", "~", "no", "name", "read-only"]
    pods.agent = "torch.distributed.run"
    pods.program = (sys.executable, str(Path(pods.program[1]).with_name("group.py")))
    pods.also = (*ON_KUBERNETES, "--make-run-dir")
    pods.start(0, 1, run_dir=pods.run_dir / "below")
    assert pods.codes() == {0: 0, 1: 0}, pods.all_logs()


WHO = """
import getpass, os, sys
print(os.getuid(), os.path.expanduser("~"))
try:
    print(getpass.getuser())
except (KeyError, OSError):
    print("no name")
try:
    open(os.path.join(os.sep, "somewhere"), "w")
except OSError as error:
    print("read-only" if error.errno == 30 else error)
"""
