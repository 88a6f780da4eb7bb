"""The run as a job of submitit's: what submits it, and what each of its tasks does.

    submitit_job.py RUN_DIR WORKDIR [--OPTION=VALUE...]     submits it, prints the job's id

It lies in the run's folder `launch` and is imported there by the job: pickled are two paths only.
A task is one node. It starts node.py and tells it to stop when submitit's signal (USR2) or SIGTERM
comes. submitit requeues after a checkpoint; teardown.sh, around it, after a failure.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import submitit
from submitit.helpers import Checkpointable, DelayedSubmission

EXIT_REQUEUE = 75
COMMAND_TIMEOUT_S = 60.0
END_GRACE_S = 60.0  # for node.py after `timeouts.shutdown`, in which it ends what has not stopped
WAIT = os.WEXITED | os.WNOWAIT  # the child stays to be collected: a handler may wait for it too


class Over(Exception):
    """Leaves submitit's handler of its signal: submitit is not to requeue."""


class Run(Checkpointable):
    """What submitit pickles and calls, once a node.

    Args:
        run_dir: the run folder, absolute.
        workdir: the folder that relative paths of the job file mean, absolute.
    """

    def __init__(self, run_dir: str, workdir: str) -> None:
        self.run_dir, self.workdir = run_dir, workdir
        self.asked = False
        self.node: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        """Run this node to its end: 0 if the run is done. Leaves with the run's code otherwise."""
        signal.signal(signal.SIGTERM, self._stop)
        try:
            self.node = start_node(self.run_dir, self.workdir)
            if self.asked:
                self._stop()
            os.waitid(os.P_PID, self.node.pid, WAIT)
            signal.signal(submitits_signal(), signal.SIG_IGN)
        except Over:
            say("not requeued by submitit")
        if code := self._code():
            sys.exit(code)  # no exception: submitit would leave with 1 for each
        return code

    def checkpoint(self) -> DelayedSubmission:
        """Called by submitit in its handler, on the first node: what it is to run next.

        Raises Over where that is nothing, or for teardown.sh to decide.
        """
        signal.signal(submitits_signal(), signal.SIG_IGN)
        self._stop()
        launch = read_launch(self.run_dir)
        if self.node and not ends(self.node.pid, launch["shutdown_timeout_s"] + END_GRACE_S):
            self.node.kill()
        cancelled = Path(self.run_dir, "cancel").exists()
        if cancelled or self._code() != EXIT_REQUEUE or not is_due_again(self.run_dir, launch):
            raise Over
        return DelayedSubmission(Run(self.run_dir, self.workdir))

    def _stop(self, number: int | None = None, _frame: FrameType | None = None) -> None:
        """Ask node.py for a checkpoint and the end of the attempt on all nodes."""
        self.asked = True
        say(f"asked to stop by {signal.Signals(number).name if number else 'submitit'}")
        if self.node is not None and self.node.returncode is None:
            self.node.send_signal(signal.SIGUSR1)

    def _code(self) -> int:
        """The exit code of node.py; EXIT_REQUEUE if a stop came before it could hear it."""
        code = self.node.wait() if self.node else EXIT_REQUEUE
        if self.asked and code == -signal.SIGUSR1:
            return EXIT_REQUEUE
        return code if code >= 0 else 128 - code


def is_due_again(run_dir: str, launch: dict[str, Any]) -> bool:
    """Whether the job file allows another attempt after this one, which has checkpointed."""
    budgets = [launch["failures"], launch["requeues"], launch["deadline_s"] or 0]
    words = ["next", run_dir, os.environ["ORCHESTRATE_ID"], EXIT_REQUEUE, *budgets]
    done = subprocess.run(
        [sys.executable, "-I", "-S", f"{run_dir}/launch/batch.py", *map(str, words)],
        stdout=subprocess.PIPE, text=True, timeout=COMMAND_TIMEOUT_S, check=True,
    )  # fmt: skip
    return done.stdout.startswith("again")


def start_node(run_dir: str, workdir: str) -> subprocess.Popen[bytes]:
    """Start node.py, which dies with this process, in a session of its own and deaf to submitit's
    signal: Slurm sends that to more than the task's first process."""
    guard = [sys.executable, "-I", "-S", f"{run_dir}/launch/node.py", "--guard", str(os.getpid())]
    signal.pthread_sigmask(signal.SIG_BLOCK, {submitits_signal()})  # children inherit it
    try:
        return subprocess.Popen([*guard, *node_command(run_dir, workdir)], start_new_session=True)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {submitits_signal()})


def node_command(run_dir: str, workdir: str) -> list[str]:
    """node.py with its arguments, as job.sh has them."""
    launch = read_launch(run_dir)
    options = {
        "run-dir": run_dir,
        "workdir": workdir,
        "nnodes": launch["num_nodes"],
        "node-rank-from": "SLURM_NODEID",
        "nproc-per-node": launch["ranks_per_node"],
        "head": os.environ["ORCHESTRATE_HEAD"],
        "port": os.environ["ORCHESTRATE_PORT"],
        "id": os.environ["ORCHESTRATE_ID"],
        "start-timeout-s": launch["start_timeout_s"],
        "shutdown-timeout-s": launch["shutdown_timeout_s"],
        "gpus-per-node": os.environ["ORCHESTRATE_GPUS"],
        "entry": "trainer.entry",
    }
    flat = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    flat += read_rendered(run_dir, "submitit.json")["node_arguments"]
    program = ["--", "--config", f"{run_dir}/rendered/trainer.json"]
    return [sys.executable, f"{run_dir}/launch/node.py", *flat, "--echo", *program]


def read_launch(run_dir: str) -> dict[str, Any]:
    """What was rendered for whoever starts the attempts."""
    return read_rendered(run_dir, "launch.json")


def read_rendered(run_dir: str, name: str) -> dict[str, Any]:
    """The object in a rendered JSON file."""
    found = json.loads(Path(run_dir, "rendered", name).read_bytes())
    assert isinstance(found, dict)
    return found


def ends(pid: int, timeout_s: float) -> bool:
    """Whether a child ends in time. Not by Popen, whose lock an interrupted wait may hold."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if os.waitid(os.P_PID, pid, WAIT | os.WNOHANG):
                return True
        except ChildProcessError:  # collected already
            return True
        time.sleep(0.1)
    return False


def submitits_signal() -> signal.Signals:
    """The signal on which submitit checkpoints (SUBMITIT_PREEMPT_SIGNAL, else USR2)."""
    return signal.Signals[f"SIG{submitit.JobEnvironment.USR_SIG}"]


def say(text: str) -> None:
    print(f"[task] {text}", file=sys.stderr, flush=True)


# --- where it is submitted ------------------------------------------------------------------------


def main(argv: list[str]) -> int:
    run_dir, workdir, *options = argv
    settings = read_rendered(run_dir, "submitit.json")
    try:
        executor = submitit.SlurmExecutor(folder=f"{run_dir}/submitit", **settings["executor"])
        executor.update_parameters(**parameters(settings["parameters"], run_dir, options))
        print(executor.submit(Run(run_dir, workdir)).job_id)
    except RuntimeError as error:  # submitit's, for whatever sbatch says and for no sbatch at all
        print(error, file=sys.stderr)
        return 1
    return 0


def parameters(rendered: dict[str, Any], run_dir: str, options: list[str]) -> dict[str, Any]:
    """The executor's parameters with what only the machine knows.

    Args:
        options: of sbatch, as --NAME=VALUE, over those that were rendered.
    """
    log = f"{run_dir}/logs/slurm-%j.log"
    more = {**rendered["additional_parameters"], "chdir": run_dir, "output": log, "error": log}
    found = {**rendered, "additional_parameters": more}
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        (found if name in found else more)[name] = value
    # sbatch takes a backslash in a directive for the start of an escape, in quotes too.
    for where in (found, more):
        where |= {k: v.replace("\\", r"\\") for k, v in where.items() if isinstance(v, str)}
    # In bash, whatever `source` is given becomes $1 and so on for the file.
    setup = shlex.join(["source", f"{run_dir}/rendered/setup.sh", run_dir])
    teardown = shlex.join(["source", f"{run_dir}/rendered/teardown.sh"]) + ' "$?"'
    return {**found, "setup": [setup], "teardown": [teardown]}


if __name__ == "__main__":
    # By its own name, not as __main__: else its bytecode would be pickled.
    sys.exit(importlib.import_module(Path(__file__).stem).main(sys.argv[1:]))
