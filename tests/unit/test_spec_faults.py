"""spec: each fault at its place, in plain words, with a fix; all at once, and no echo of one."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import Fault, FaultsError
from orchestrator.source import Document, parse_document
from orchestrator.spec import fields, resolve_job
from orchestrator.spec.later import LATER_KEYS, LATER_VALUES

GOOD = """\
name: demo
train:
  model: {preset: nano}
  data: {python_docs: true}
  steps: 10
"""


def faults_of(text: str) -> tuple[Fault, ...]:
    try:
        resolve_job(parse_document(text.encode(), "job.yaml"))
    except FaultsError as error:
        return error.faults
    return ()


def only(text: str) -> Fault:
    (fault,) = faults_of(text)
    return fault


def test_the_example_is_good() -> None:
    assert faults_of(GOOD) == ()


# Lines added below GOOD, so that the first of them is line 6; place, message, fix.
ADDED = [
    ("resources: {gpus_per_nod: 2}", "6:13", "unknown key", '"gpus_per_node"'),
    ("resources: {Nodes: 2}", "6:13", "unknown key", '"nodes"'),
    ("resources: {cpus-per-rank: 2}", "6:13", "unknown key", '"cpus_per_rank"'),
    ("resources: {zzz: 2}", "6:13", "unknown key", "the keys here are nodes, gpus_per_node"),
    ("steps: 3", "6:1", "unknown key", "did you mean train.steps?"),
    ("learning_rate: 3", "6:1", "unknown key", "did you mean train.optimizer.lr?"),
    ("ddp_bucket_cap_mb: 3", "6:1", "unknown key", "parallelism.ddp.bucket_cap_mb"),
    ("resources: {nodes: 0}", "6:20", "0 is not at least 1", "from 1 to 10000"),
    ("resources: {nodes: 10001}", "6:20", "10001 is not at most 10000", "from 1 to 10000"),
    ("resources: {nodes: two}", "6:20", 'a whole number belongs here, not "two"', "from 1"),
    ("resources: {nodes: '2'}", "6:20", 'not "2"', "remove the quotes: 2"),
    ("resources: {nodes: 2.0}", "6:20", "not 2.0", "write 2"),
    ("resources: {nodes: 1_000}", "6:20", 'not "1_000"', "write 1000"),
    ("resources: {nodes: true}", "6:20", "not true", "from 1"),
    ("resources: {nodes: null}", "6:20", "not nothing", "from 1"),
    ("resources: {nodes: [1]}", "6:20", "not a list", "from 1"),
    ("resources: {memory: 512m}", "6:21", "milli", "512MiB"),
    ("resources: {memory: 80G}", "6:21", "ambiguous", "80GiB or 80GB"),
    ("resources: {time_limit: 90}", "6:25", "no unit", "90m"),
    ("resources: {time_limit: '90:00'}", "6:25", "hours:minutes", "90h00m or 90m00s"),
    ("resources: {gpu_type: a b, gpus_per_node: 1}", "6:23", '"a b" is not', "letters"),
    ("resources: {gpu_type: a100}", "6:13", "no GPUs are asked for", "gpus_per_node"),
    ("resources: {gpus_per_node: 4, ranks_per_node: 2}", "6:47", "2 ranks for 4 GPUs", "4"),
    ("resources: 3", "6:12", "a map (lines of `key: value`) belongs here, not 3", "indent"),
    ("resources:\n  - nodes: 2", "7:3", "not a list", "remove the hyphens"),
    (
        "launcher: deepspeed",
        "6:11",
        '"deepspeed" is not supported yet',
        "use torchrun or srun or submitit",
    ),
    ("launcher: submitit", "6:11", "5 minutes where it is given none", "resources.time_limit"),
    ("launcher: torchrn", "6:11", "is none of torchrun, srun, submitit", '"torchrun"'),
    ("checkpoint: {format: ful}", "6:22", "none of auto, full, sharded, both", '"full"'),
    ("parallelism: {precision: bf61}", "6:26", "none of fp32, bf16", '"bf16"'),
    ("parallelism: {precision: 16}", "6:26", "16 is none of fp32, bf16", ""),
    ("parallelism: {ddp: {static_graph: yes}}", "6:35", 'not "yes"', "write true"),
    ("parallelism: {ddp: {static_graph: 0}}", "6:35", "not 0", "write false"),
    ("parallelism: {ddp: {bucket_cap_mb: 0}}", "6:36", "0 is not above 0", "a number above 0"),
    ("parallelism: {ddp: {bucket_cap_mb: '2'}}", "6:36", 'not "2"', "remove the quotes"),
    ("parallelism: {ddp: {bucket_cap_mb: big}}", "6:36", 'not "big"', "a number above 0"),
    ("parallelism: {ddp: {bucket_cap_mb: .inf}}", "6:36", "no finite number", "a number"),
    (
        "parallelism: {activation_checkpointing: full, ddp: {find_unused_parameters: true}}",
        "6:77",
        "cannot be true together with activation checkpointing: the recomputed pass",
        "find_unused_parameters: false, or activation_checkpointing: none",
    ),
    (
        "parallelism: {activation_checkpointing: full, ddp: {broadcast_buffers: true}}",
        "6:72",
        "cannot be true together with activation checkpointing: the recomputed pass",
        "broadcast_buffers: false, or",
    ),
    ("network: {backend: nccl}", "6:20", "nccl needs GPUs", "gloo"),
    ("network: {backend: hccl}", "6:20", "hccl needs GPUs", "write backend: gloo"),
    ("network: {interface: 'eth0,eth1'}", "6:22", "name of a network interface", "eth0"),
    ("network: {interface: ''}", "6:22", "name of a network interface", "eth0"),
    ("timeouts: {step: 0s}", "6:18", "no time at all", "1s"),
    ("timeouts: {stp: 5m}", "6:12", "unknown key", '"step"'),
    ("attempts: {failures: -1}", "6:22", "-1 is not at least 0", "from 0"),
    ("env: {RANK: '0'}", "6:7", "RANK is set by the launcher", "remove"),
    ("env: {PET_NNODES: '0'}", "6:7", "set by the launcher", "remove"),
    ("env: {SLURM_JOB_ID: '0'}", "6:7", "set by the launcher", "remove"),
    ("env: {a-b: '0'}", "6:7", '"a-b" cannot be the name', "underscores"),
    ("env: {A: 1}", "6:10", "is a text", 'A: "1"'),
    ("env: {A: true}", "6:10", "is a text", 'A: "true"'),
    ("env: {A: }", "6:10", "not nothing", 'A: ""'),
    ("env: {A: [1]}", "6:10", "not a list", "A:"),
    ('env: {A: "x\\0"}', "6:10", "NUL", "remove"),
    ("env: {HF_TOKEN: hf_1}", "6:7", "looks like a secret", "shell that submits"),
    ("env: {my_password: '${PW}'}", "6:7", "looks like a secret", "shell that submits"),
    ("env: [A]", "6:6", "not a list", ""),
    ("network: {env: {A: 'x'}}\nenv: {A: 'y'}", "6:17", "another value in env", "one of the two"),
    ("env: {'${A}': 'x'}", "6:7", "cannot be the name", "letters"),
    ("resources: {nodes: '${N}'}", "6:20", "free texts only", "--set resources.nodes=..."),
    ("timeouts: {step: '${T:-5m}'}", "6:18", "free texts only", "--set timeouts.step=..."),
    ("clusters: [a]", "6:11", "a map", "profile's name"),
    ("clusters: {a: b}", "6:15", "a map", "profile's name"),
    ("clusters: {a: {nam: b}}", "6:16", "unknown key", '"name"'),
    ("clusters: {a: {clusters: {}}}", "6:16", "top of the job file only", "move"),
    ("clusters: {a: {resources: {nodes: x}}}", "6:35", "whole number", "from 1"),
]


@pytest.mark.parametrize(("added", "where", "message", "fix"), ADDED)
def test_one_fault_at_its_place(added: str, where: str, message: str, fix: str) -> None:
    fault = only(f"{GOOD}{added}\n")
    assert fault.where() == f"job.yaml:{where}"
    assert message in fault.message
    assert fix in fault.fix


# In place of a line of GOOD.
CHANGED = [
    ("name: demo", "name: De Mo", "1:7", '"De Mo" is not a name', "write name: de-mo"),
    ("name: demo", "name: 1", "1:7", "a text belongs here, not 1", 'quotes: "1"'),
    ("name: demo", "name: '-'", "1:7", "is not a name", ""),
    ("name: demo", f"name: {'a' * 53}", "1:7", "at most 52", f"name: {'a' * 52}"),
    ("name: demo", "name: a-", "1:7", "no hyphen last", "write name: a"),
    ("name: demo", "name: ${USER}-run", "1:7", "free texts only", "--set name="),
    ("name: demo", "name:", "1:6", "not nothing", ""),
    ("name: demo\n", "", "1:1", "required, and not given", "name: my-run"),
    ("  steps: 10\n", "", "2:1", "required, and not given", "steps: 400"),
    ("  steps: 10", "  stps: 10", "5:3", "unknown key", '"steps"'),
    ("{preset: nano}", "{preset: nan}", "3:19", '"nan" is none of nano, tiny', '"nano"'),
    ("{preset: nano}", "{presett: nano}", "3:11", "unknown key", '"preset"'),
    ("{preset: nano}", "{}", "3:3", "no model is chosen", "preset: nano"),
    ("{preset: nano}", "nano", "3:10", 'not "nano"', "preset, layers"),
    ("{preset: nano}", "{layers: 2, heads: 2}", "3:3", "missing: width, context", "preset"),
    ("{preset: nano}", "{preset: nano, heads: 3}", "3:32", "3 heads do not divide", "heads: 2"),
    ("{preset: nano}", "{preset: nano, width: 65}", "3:32", "do not divide", "heads: 1"),
    ("{preset: nano}", "{preset: nano, args: {a: 1}}", "3:25", "belong to a factory", "remove"),
    ("{preset: nano}", "{factory: a.b}", "3:20", '"a.b" is not', "package.module:function"),
    ("{preset: nano}", "{factory: 'a:b'}", "3:3", "context is required", "context"),
    (
        "{preset: nano}",
        "{factory: 'a:b', context: 8, layers: 2}",
        "3:39",
        "no effect",
        "args: {layers: ...}",
    ),
    (
        "{preset: nano}",
        "{factory: 'a:b', context: 8, args: {a-b: 2}}",
        "3:46",
        '"a-b" cannot be a keyword argument',
        "",
    ),
    ("{preset: nano}", "{preset: nano, dropout: 1}", "3:34", "1 is not below 1", "below 1"),
    ("{python_docs: true}", "{}", "4:3", "no data is chosen", "python_docs: true"),
    ("{python_docs: true}", "{python_docs: false}", "4:23", "only true", ""),
    ("{python_docs: true}", "{text: a, tokens: b}", "4:19", "only one of text", "or text"),
    ("{python_docs: true}", "{text: []}", "4:16", "names nothing", "one path"),
    ("{python_docs: true}", "{text: ''}", "4:16", "names nothing", "one path"),
    ("{python_docs: true}", "{text: [a, 1]}", "4:20", "a text belongs here, not 1", '"1"'),
    ("{python_docs: true}", "{text: [a, '']}", "4:20", "an empty text", ""),
    ("{python_docs: true}", "{text: {a: 1}}", "4:16", "a list belongs here, not a map", "path"),
    ("{python_docs: true}", "{synthetic: {}}", "4:10", "required", "samples: 1000"),
    ("{python_docs: true}", "{synthetic: {samples: 0}}", "4:31", "0 is not at least 1", "from 1"),
    ("{python_docs: true}", "{tokens: a, tokenizer: b}", "4:21", "goes with text only", "remove"),
    ("{python_docs: true}", "{text: a, dtype: uint32}", "4:19", "with tokens only", "remove"),
    (
        "{python_docs: true}",
        "{text: a, validation: {tokens: b}}",
        "4:32",
        "validation cannot be tokens",
        "validation.text",
    ),
    (
        "{python_docs: true}",
        "{text: a, validation: {text: b, fraction: 0.1}}",
        "4:41",
        "no fraction",
        "remove fraction or text",
    ),
    ("steps: 10", "steps: 10\n  schedule: {warmup_steps: 10}", "6:28", "none of the 10", "than 10"),
    ("steps: 10", "steps: 10\n  optimizer: {betas: [0.9]}", "6:22", "too few", "two numbers"),
    ("steps: 10", "steps: 10\n  optimizer: {betas: [0, 0, 0]}", "6:22", "too many", "two numbers"),
    ("steps: 10", "steps: 10\n  optimizer: {betas: 0.9}", "6:22", "a list belongs", "two numbers"),
    ("steps: 10", "steps: 10\n  optimizer: {betas: [0.9, 1]}", "6:28", "not below 1", ""),
    ("steps: 10", "steps: 10\n  seed: 4294967296", "6:9", "not below 4294967296", "from 0"),
    ("steps: 10", "steps: 10\n  profiler: {}", "6:3", "not supported yet", "remove"),
]


@pytest.mark.parametrize(("old", "new", "where", "message", "fix"), CHANGED)
def test_one_fault_in_a_changed_line(
    old: str, new: str, where: str, message: str, fix: str
) -> None:
    assert old in GOOD
    fault = only(GOOD.replace(old, new))
    assert fault.where() == f"job.yaml:{where}"
    assert message in fault.message
    assert fix in fault.fix


def test_all_faults_come_at_once_in_the_order_of_the_file() -> None:
    text = """\
name: Demo
resources:
  nodes: 2
  nodes: 3
  memory: 512m
train:
  model: {preset: nano, heads: 3}
  data: {python_docs: true, workers: many}
  steps: "400"
checkpoint: {async: 1}
"""
    assert [fault.key for fault in faults_of(text)] == [
        "name",
        "resources.nodes",
        "resources.memory",
        "train.model.heads",
        "train.data.workers",
        "train.steps",
        "checkpoint.async",
    ]


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("name: x\n", ["train"]),
        ("name: x\ntrian: {steps: 1}\n", ["trian"]),
        ("name: x\ntrain: 1\n", ["train"]),
        ("name: x\ntrain:\n", ["train"]),
        (
            "name: x\ntrain: {stesp: 3, model: {presett: a}, data: {txt: b}}\n",
            ["train.stesp", "train.model.presett", "train.data.txt"],
        ),
        ("name: x\ntrain: {}\n", ["train.data", "train.model", "train.steps"]),
        (GOOD.replace("nano", "nano, heads: x, width: 65"), ["train.model.heads"]),
        (f"{GOOD}resources: {{gpus_per_node: x, ranks_per_node: 3}}", ["resources.gpus_per_node"]),
        (
            GOOD + "parallelism: {activation_checkpointing: ful, ddp: {broadcast_buffers: true}}",
            ["parallelism.activation_checkpointing"],
        ),
        (GOOD.replace("10", "x\n  schedule: {warmup_steps: 7}"), ["train.steps"]),
    ],
)
def test_one_mistake_makes_one_fault(text: str, keys: list[str]) -> None:
    assert sorted(fault.key for fault in faults_of(text)) == sorted(keys)


@pytest.mark.parametrize("key", LATER_KEYS)
def test_keys_of_later_releases_are_named_as_such(key: str) -> None:
    data: Any = {"anything": 1}
    for part in reversed(key.split(".")):
        data = {part: data}
    with pytest.raises(FaultsError) as caught:
        resolve_job(Document("f", "", data, {}))
    fault = next(fault for fault in caught.value.faults if fault.key == key)
    assert fault.message == f"not supported yet (for {LATER_KEYS[key]})"


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in LATER_VALUES.items() for value in values]
)
def test_values_of_later_releases_are_named_as_such(key: str, value: str) -> None:
    fault = only(f"{GOOD}{key.replace('.', ': {')}: {value}{'}' * key.count('.')}")
    assert fault.message == f'"{value}" is not supported yet'


def test_later_names_are_not_names_of_today() -> None:
    today = {info.path for info in fields() if info.supported}
    assert not today & set(LATER_KEYS)
    assert set(LATER_VALUES) <= today
