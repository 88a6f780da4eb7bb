"""docs/check.md is made from the rules and their examples; `make golden` writes it anew."""

from __future__ import annotations

from pathlib import Path

from check_examples import EXAMPLES
from orchestrator.checking import RULES

HEAD = """\
# orchestrate check: mistakes of a script on several ranks

`orchestrate check train.py` reads a PyTorch training script, without running or importing it, and
names what goes wrong once several ranks run it: the line, why, and what to do. `--json` gives the
same to programs. Exit code 0: nothing found; 1: findings; 2: a file that is no Python, with its
line.

- A script that sets up torch.distributed itself is looked at, and one that trains in one process:
  the latter as if several ranks ran it, so it lists what has to change
  ([tutorial](tutorial-ddp.md)). A script that speaks of ranks but leaves the set-up to others, or
  to Accelerate, Lightning, DeepSpeed or the like, has no findings.
- A part that only runs in one process (`if not distributed:`, `if rank == -1:`) is left alone.
- A finding that is wrong or meant is accepted by a comment on its line, `# check: ok no-sampler`,
  and a rule is left out by `--ignore no-sampler`.
- It looks at each file by itself, and at words: a function that saves, called on rank 0 in
  another file, is a finding of `save-on-every-rank`. It finds what is below and no more. That the
  learning rate suits a larger batch, or that ranks have equally many batches, it cannot say.

Made from the rules and their tests by `make golden`. In the examples the line with `# <-` is the
finding.

| rule | what happens | fix |
|---|---|---|
"""


def page() -> str:
    rows = [f"| [{r.name}](#{r.name}) | {r.reason} | {r.fix} |\n" for r in RULES]
    parts = [part(rule.name) for rule in RULES]
    return HEAD + "".join(rows) + "".join(parts)


def part(rule: str) -> str:
    wrong, right = EXAMPLES[rule]
    return f"\n## {rule}\n\n```python\n{wrong}```\n\nRight:\n\n```python\n{right}```\n"


def test_the_page_is_what_the_rules_say(root: Path, update_golden: bool) -> None:
    file = root / "docs" / "check.md"
    if update_golden:
        file.write_text(page(), "utf-8")
    assert file.read_text("utf-8") == page(), "docs/check.md differs; make golden, read the diff"
