"""slurm/dev-cluster is a cluster as real as the tests need it, and leaves nothing behind."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from running import wait_until
from slurm.cluster import Cluster, dev_cluster

# One listener per node, on the same port everywhere; then each node greets all others by name.
GREET = """
import os, socket
me, peers = socket.gethostname(), os.environ["PEERS"].split()
server = socket.create_server((socket.gethostbyname(me), 29500))
for peer in peers:
    for _ in range(600):
        try:
            client = socket.create_connection((peer, 29500), timeout=10)
            break
        except ConnectionRefusedError:
            os.sched_yield()
            __import__("time").sleep(0.05)
    client.sendall(me.encode() + b"\\n")
    client.close()
server.settimeout(30)
heard = []
for _ in peers:
    connection, _address = server.accept()
    heard.append(connection.makefile().readline().strip())
print(me, server.getsockname()[0], *sorted(heard))
"""

ALL_REDUCE = """
import os, torch, torch.distributed as dist
os.environ.update(RANK=os.environ["SLURM_PROCID"], WORLD_SIZE=os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo")
x = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(x)
print("sum", x.item())
dist.destroy_process_group()
"""


def logged(file: Path, text: str) -> bool:
    return file.exists() and text in file.read_text()


def python(code: str, tmp_path: Path) -> str:
    """Shell words that run the code with this test's Python."""
    file = tmp_path / "program.py"
    file.write_text(code)
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(file))}"


@pytest.mark.slurm24
def test_each_node_has_its_own_name_and_address_and_reaches_the_others(
    cluster: Cluster, tmp_path: Path
) -> None:
    peers = " ".join(cluster.nodes)
    script = f"export PEERS='{peers}'\nsrun --ntasks-per-node=1 {python(GREET, tmp_path)}"
    job = cluster.sbatch(script, f"-N{cluster.num_nodes}", output=tmp_path / "log")
    assert cluster.wait_for_end(job)["JobState"] == "COMPLETED", (tmp_path / "log").read_text()
    lines = sorted((tmp_path / "log").read_text().splitlines())
    assert lines == [f"node{i} 10.77.0.{10 + i} {peers}" for i in range(1, cluster.num_nodes + 1)]


def test_a_job_runs_torch_over_nodes(cluster: Cluster, tmp_path: Path) -> None:
    script = (
        "export MASTER_PORT=29501 OMP_NUM_THREADS=1\n"
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        f"export MASTER_ADDR\nsrun {python(ALL_REDUCE, tmp_path)}"
    )
    job = cluster.sbatch(script, "-N2", "--ntasks-per-node=1", output=tmp_path / "log")
    ended = cluster.wait_for_end(job, timeout_s=120)
    assert ended["JobState"] == "COMPLETED", (tmp_path / "log").read_text()
    assert (tmp_path / "log").read_text().count("sum 3.0") == 2


@pytest.mark.slurm24
def test_inside_a_node_the_clients_are_real_even_without_the_submitters_environment(
    cluster: Cluster, tmp_path: Path
) -> None:
    script = (
        f'echo "$SLURM_CONF"\nexport SLURM_CONF={cluster.state_dir}/slurm.conf\nsqueue -h -o %j'
    )
    options = ("--job-name=seen", "--export=NONE")
    job = cluster.sbatch(script, *options, output=tmp_path / "log")
    assert cluster.wait_for_end(job)["JobState"] == "COMPLETED", (tmp_path / "log").read_text()
    assert "seen" in (tmp_path / "log").read_text().split()


@pytest.mark.slurm24
def test_gpus_are_bound_and_never_shared(cluster: Cluster, tmp_path: Path) -> None:
    both = cluster.sbatch(
        'echo "$CUDA_VISIBLE_DEVICES"', "-wnode1", "--gpus-per-node=2", output=tmp_path / "both"
    )
    cluster.wait_for_end(both)
    assert (tmp_path / "both").read_text() == "0,1\n"
    script = 'echo "$CUDA_VISIBLE_DEVICES"; sleep 600'
    for name in ("one", "other"):
        cluster.sbatch(script, "-wnode1", "--gpus-per-node=1", output=tmp_path / name)
    logs = [tmp_path / "one", tmp_path / "other"]
    wait_until(lambda: all(log.exists() and log.read_text() for log in logs), "both jobs run")
    assert sorted(log.read_text() for log in logs) == ["0\n", "1\n"]


def test_more_gpus_than_there_are_is_refused(cluster: Cluster) -> None:
    with pytest.raises(AssertionError, match="configuration is not available"):
        cluster.client("sbatch", "--test-only", "--gpus-per-node=3", "--wrap=true")


@pytest.mark.slurm24
def test_accounting_answers_with_exit_codes(cluster: Cluster, tmp_path: Path) -> None:
    jobs = [cluster.sbatch(f"exit {code}", output=tmp_path / "log") for code in (0, 3)]
    fields = ("--format=JobID,State,ExitCode", "-n", "-P", "-X")

    def answer() -> list[str]:
        return cluster.client("sacct", "-j", ",".join(jobs), *fields).split()

    expected = [f"{jobs[0]}|COMPLETED|0:0", f"{jobs[1]}|FAILED|3:0"]
    wait_until(lambda: answer() == expected, f"sacct says {expected}")


@pytest.mark.slurm24
def test_a_higher_partition_preempts_by_requeue(cluster: Cluster, tmp_path: Path) -> None:
    script = 'echo "run ${SLURM_RESTART_COUNT:-0}"; sleep 600'
    everything = ("--exclusive", f"-N{cluster.num_nodes}")
    victim = cluster.sbatch(script, *everything, "-pmain", output=tmp_path / "log")
    cluster.wait_for_state(victim, "RUNNING")
    wait_until(lambda: logged(tmp_path / "log", "run 0"), "the first run")
    winner = cluster.sbatch("sleep 600", *everything, "-purgent", output=tmp_path / "winner")
    cluster.wait_for_state(winner, "RUNNING")
    assert cluster.wait_for_state(victim, "PENDING")["Restarts"] == "1"
    cluster.client("scancel", winner)
    cluster.start_now(victim)
    wait_until(lambda: logged(tmp_path / "log", "run 1"), "the second run")


def test_a_killed_node_fails_its_job_and_comes_back_after_a_boot(
    cluster: Cluster, tmp_path: Path
) -> None:
    script = 'echo "run ${SLURM_RESTART_COUNT:-0}"; sleep 600'
    again = cluster.sbatch(script, "-wnode2", "--requeue", output=tmp_path / "again")
    never = cluster.sbatch(script, "-wnode2", "--no-requeue", output=tmp_path / "never")
    for job in (again, never):
        cluster.wait_for_state(job, "RUNNING")
    cluster.dev("kill", "node2")
    assert "node2 off" in cluster.dev("status")
    cluster.wait_for_node_down("node2")
    cluster.wait_for_state(never, "NODE_FAIL")
    assert cluster.wait_for_state(again, "PENDING")["Restarts"] == "1"
    cluster.dev("start", "node2")
    cluster.wait_for_node_up("node2")
    cluster.start_now(again)
    wait_until(lambda: logged(tmp_path / "again", "run 1"), "the second run")


def test_a_cut_node_is_down_but_lives_on_until_it_is_healed(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = cluster.sbatch("sleep 611", "-wnode3", "--requeue", output=tmp_path / "log")
    cluster.wait_for_state(job, "RUNNING")
    wait_until(lambda: "sleep 611" in cluster.processes("node3"), "the job's process")
    cluster.dev("cut", "node3")
    cluster.wait_for_node_down("node3")
    assert cluster.wait_for_state(job, "PENDING")["Restarts"] == "1"
    assert "sleep 611" in cluster.processes("node3")
    cluster.dev("heal", "node3")
    cluster.wait_for_node_up("node3")
    wait_until(lambda: "sleep 611" not in cluster.processes("node3"), "the old run's end")


def test_the_time_limit_ends_even_a_job_that_ignores_it(cluster: Cluster, tmp_path: Path) -> None:
    script = "trap 'echo asked' TERM\nwhile :; do sleep 0.2; done"
    job = cluster.sbatch(script, "-wnode1", "--time=1", output=tmp_path / "log")
    cluster.wait_for_state(job, "RUNNING")
    assert cluster.client("scontrol", "show", "config").count("OverTimeLimit           = 0") == 1
    # Asked to end after a minute, killed KillWait (5 s) later.
    wait_until(lambda: logged(tmp_path / "log", "asked"), "SIGTERM", timeout_s=90)
    cluster.wait_for_state(job, "TIMEOUT", timeout_s=30)
    wait_until(lambda: "slurm_script" not in cluster.processes("node1"), "its end", timeout_s=30)


def state_of_machine() -> dict[str, str]:
    """What a cluster must leave as it was."""
    commands = {
        "links": "ip -o link | cut -d: -f1,2",
        "addresses": "ip -o addr | cut -c1-60",
        "mounts": "cut -d' ' -f5 /proc/self/mountinfo",
        "names": "cat /etc/hosts /etc/resolv.conf; hostname",
    }
    return {
        key: subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout
        for key, line in commands.items()
    }


def control_group(state_dir: Path) -> Path:
    """The cluster's folder in the freezer of cgroup v1, if this machine has one."""
    checksum = subprocess.run(
        ["cksum"], input=f"{state_dir}\n", capture_output=True, text=True, check=True
    )
    folder = Path("/sys/fs/cgroup/freezer")
    group = folder / f"dev-cluster-{checksum.stdout.split()[0]}"
    assert group.exists() == os.access(folder, os.W_OK)
    return group


def environments_with(value: str) -> list[int]:
    """Pids of all processes that have the value in their environment or arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if value.encode() in text and entry.name != str(os.getpid()):
            found.append(int(entry.name))
    return found


@pytest.mark.slurm24
def test_down_leaves_nothing_and_other_clusters_alone(
    cluster: Cluster, state_dir: Path, tmp_path: Path
) -> None:
    before = state_of_machine()
    own = Cluster(state_dir, 2)
    own.dev("up", "2")
    freezer = control_group(state_dir)
    # A process in a session of its own, whose parent is gone.
    script = "setsid sleep 622 & disown\nsleep 600"
    job = own.sbatch(script, "-N2", output=tmp_path / "log")
    own.wait_for_state(job, "RUNNING")
    wait_until(lambda: "sleep 622" in own.processes("node1"), "the orphan")
    assert environments_with(str(state_dir))
    own.dev("down", "--purge")
    assert environments_with(str(state_dir)) == []
    assert not state_dir.exists()
    assert not freezer.exists()
    assert state_of_machine() == before
    cluster.wait_for_node_up("node1")


@pytest.mark.slurm24
def test_down_keeps_jobs_for_the_next_up(state_dir: Path, tmp_path: Path) -> None:
    own = Cluster(state_dir, 1)
    own.dev("up", "1")
    job = own.sbatch("exit 4", output=tmp_path / "log")
    own.wait_for_state(job, "FAILED")
    own.dev("down")
    assert environments_with(str(state_dir)) == []
    own.dev("up", "1")
    assert own.scontrol(job)["ExitCode"] == "4:0"


def test_a_cluster_ends_with_the_process_that_wanted_it(state_dir: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as owner:
        Cluster(state_dir, 1).dev("up", "1", "--until-pid", str(owner.pid))
        owner.kill()
    wait_until(lambda: not state_dir.exists(), "the state folder's end")
    wait_until(lambda: environments_with(str(state_dir)) == [], "the processes' end")


def test_a_pid_that_another_process_got_later_is_left_alone(state_dir: Path) -> None:
    (state_dir / "run").mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        (state_dir / "run" / "head.pid").write_text(f"{stranger.pid} 12345\n")
        dev_cluster("--state", state_dir, "down", "--purge")
        assert stranger.poll() is None
        stranger.kill()
    assert not state_dir.exists()
