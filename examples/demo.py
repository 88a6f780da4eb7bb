"""The main job, and a judge of it: `make demo`.

Submits examples/demo.yaml, follows it, and compares its validation loss with that of a bigram
count model fitted on the same training split. Leaves with 0 only if the run learned more.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainer.config import read_config
from trainer.data import load_corpus

HERE = Path(__file__).resolve().parent
BYTES = 256
DEADLINE_S = 1800


def bigram_loss(train: npt.NDArray[np.int64], validation: npt.NDArray[np.int64]) -> float:
    """Nats per byte of a bigram model with add-one smoothing; windows are [N, T + 1] bytes."""
    counts = np.ones((BYTES, BYTES))
    np.add.at(counts, (train[:, :-1], train[:, 1:]), 1)
    log_probability = np.log(counts / counts.sum(axis=1, keepdims=True))
    return float(-log_probability[validation[:, :-1], validation[:, 1:]].mean())


def main(cluster: Sequence[str]) -> int:
    """Run and judge the job; returns 0 only if it learned enough.

    Args:
        cluster: the command's options that name a cluster.

    Raises subprocess.TimeoutExpired if the run takes longer than half an hour.
    """
    orchestrate = str(Path(sys.executable).parent / "orchestrate")
    submit = [orchestrate, "submit", str(HERE / "demo.yaml"), *cluster, "--fresh", "--watch"]
    if subprocess.run(submit, check=False, timeout=DEADLINE_S).returncode:
        return 1
    status = [orchestrate, "status", "demo", *cluster, "--json"]
    answer = subprocess.run(status, check=True, capture_output=True, text=True).stdout
    return judge(Path(json.loads(answer)[0]["run_dir"]))


def judge(run: Path) -> int:
    """Compare the run in this folder with bigrams; returns 0 if it learned more."""
    corpus = load_corpus(read_config(run / "rendered" / "trainer.json"), HERE)
    assert corpus.validation is not None
    bigrams = bigram_loss(
        corpus.train[np.arange(len(corpus.train))].numpy(),
        corpus.validation[np.arange(len(corpus.validation))].numpy(),
    )
    loss = final_loss(run / "metrics.jsonl")
    checkpoints = sorted(path.name for path in (run / "checkpoints").iterdir())
    print(f"a bigram count model    {bigrams:.4f} nats per byte on the same validation text")
    print(f"checkpoints             {', '.join(checkpoints)}")
    print(f"logs, metrics, events   {run.resolve()}")
    if not loss < bigrams or not math.isfinite(loss) or len(checkpoints) < 2:
        print("the run did not learn more than bigrams, or kept fewer than two checkpoints")
        return 1
    return 0


def final_loss(metrics: Path) -> float:
    """The newest validation loss of a run, in nats per byte."""
    entries = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()]
    losses = [e["loss_per_byte"] for e in entries if e.get("event") == "validation"]
    return float(losses[-1])


if __name__ == "__main__":
    # Whatever profile the user's own file makes the default.
    sys.exit(main(["--cluster", "local"]))
