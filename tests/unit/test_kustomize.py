"""What kustomize builds of an overlay is what render makes for that cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from k8s.kustomized import built, documents, rendered_objects
from orchestrator.cli.common import load_job
from orchestrator.errors import UserError
from orchestrator.kustomize import HEADER, kustomize
from orchestrator.render import Rendered, render
from orchestrator.yaml_text import yaml_text

ROOT = Path(__file__).resolve().parent.parent.parent
DEMO = ROOT / "examples" / "demo.yaml"

# A base and five clusters that differ from it in everything that an overlay can say.
CLUSTERS = """\
clusters:
  first:
    target: TARGET
    runs_root: /runs
    kubernetes:
      namespace: team-a
      image: registry.example/trainer:1.2
      runs: {pvc: runs}
      labels: {team: a, tier: gold}
      annotations: {owner: "a@example.org", note: "{{ x }} $(y)"}
      tolerations: [{key: gpu}]
  same-but-place:
    target: TARGET
    runs_root: /runs
    kubernetes:
      image: registry.example/trainer:1.3
      runs: {pvc: runs}
      labels: {team: a, tier: gold}
      annotations: {owner: "a@example.org", note: "{{ x }} $(y)"}
      tolerations: [{key: gpu}]
  other:
    target: TARGET
    runs_root: /data/runs
    kubernetes:
      namespace: team-b
      image: host:5000/trainer@sha256:DIGEST
      runs: {nfs: "host:/export"}
      launcher_from: config-map
      labels: {team: b}
      annotations: {"example.org/a_b": "é \\U0001F600", long: "LONG"}
      tolerations: [{key: gpu}, {key: "a"}]
      host_network: true
      pod_security: none
      node_selector: {pool: a100}
    defaults:
      env: {QUOTES: "a'b\\"c\\n$(HOME) ${{HOME}}", "NO": "no"}
  queued:
    target: TARGET
    runs_root: /runs
    kubernetes:
      namespace: team-a
      image: untagged
      runs: {pvc: runs}
      kueue: {queue: main, topology: required, topology_level: rack}
  gang:
    target: TARGET
    runs_root: /runs
    kubernetes:
      namespace: team-a
      runs: {pvc: runs}
      coscheduling: {schedule_timeout: 5m}
  no-operator:
    target: job
    runs_root: /runs
    kubernetes:
      namespace: team-c
      runs: {pvc: runs}
"""


NAMES = ["first", "same-but-place", "other", "queued", "gang", "no-operator"]


def clusters_of(target: str, tmp_path: Path) -> Path:
    file = tmp_path / "clusters.yaml"
    text = (
        CLUSTERS.replace("TARGET", target).replace("LONG", "x" * 5000).replace("DIGEST", "0" * 64)
    )
    file.write_text(text.replace("${{HOME}}", "$HOME"), "utf-8")
    return file


def render_for(job: Path, clusters: Path, names: list[str]) -> list[tuple[str, Rendered]]:
    return [(n, render(load_job(job, n, str(clusters), []).plan())) for n in names]


def write(files: dict[str, str], folder: Path) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, "utf-8")


def manifests(rendered: Rendered) -> dict[str, Any]:
    texts = [text for name, text in rendered.files.items() if name.endswith(".yaml")]
    return rendered_objects(*texts)


@pytest.mark.parametrize(
    ("target", "example"),
    [
        ("job", "demo"),
        ("job", "elastic"),
        ("jobset", "demo"),
        ("pytorchjob", "demo"),
        ("pytorchjob", "elastic"),
        ("trainjob", "demo"),
    ],
)
def test_a_built_overlay_is_what_the_cluster_would_get(
    target: str, example: str, tmp_path: Path
) -> None:
    job = ROOT / "examples" / f"{example}.yaml"
    each = render_for(job, clusters_of(target, tmp_path), NAMES)
    write(kustomize(each), tmp_path)
    for name, rendered in each:
        assert built(tmp_path / "overlays" / name) == manifests(rendered), name


@pytest.mark.parametrize("base", NAMES[1:])
def test_any_cluster_can_be_the_base(base: str, tmp_path: Path) -> None:
    names = [base, *(name for name in NAMES if name != base)]
    each = render_for(DEMO, clusters_of("job", tmp_path), names)
    write(kustomize(each), tmp_path)
    for name, rendered in each:
        assert built(tmp_path / "overlays" / name) == manifests(rendered), name


def test_the_base_has_no_namespace_and_is_whole(tmp_path: Path) -> None:
    each = render_for(DEMO, clusters_of("trainjob", tmp_path), ["first"])
    write(kustomize(each), tmp_path)
    expected = manifests(each[0][1])
    for tree in expected.values():
        assert tree["metadata"].pop("namespace") == "team-a"
    assert built(tmp_path / "base") == expected


def test_an_overlay_says_what_differs_and_nothing_else(tmp_path: Path) -> None:
    each = render_for(DEMO, clusters_of("job", tmp_path), ["first", "same-but-place"])
    files = kustomize(each)
    first, other = (files[f"overlays/{name}/kustomization.yaml"] for name, _ in each)
    head = HEADER + "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
    assert first == head + 'namespace: team-a\nresources:\n  - "../../base"\n'
    assert "images:\n  - name: registry.example/trainer\n" in other
    assert 'newTag: "1.3"' in other
    for word in ("namespace", "labels", "tolerations", "trainer.json"):
        assert word not in other


def test_the_bytes_depend_on_what_was_rendered_alone(tmp_path: Path) -> None:
    clusters = clusters_of("job", tmp_path)
    once, again = (kustomize(render_for(DEMO, clusters, NAMES)) for _ in range(2))
    assert once == again
    assert str(tmp_path) not in "".join(once.values())


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "a b"])
def test_a_name_that_makes_no_folder_is_refused(name: str, tmp_path: Path) -> None:
    [(_, rendered)] = render_for(DEMO, clusters_of("job", tmp_path), ["first"])
    with pytest.raises(UserError, match="becomes a folder"):
        kustomize([(name, rendered)])


@pytest.mark.parametrize("target", ["job", "jobset", "pytorchjob", "trainjob"])
def test_the_overlays_of_all_examples_build(target: str, tmp_path: Path) -> None:
    clusters = clusters_of(target, tmp_path)
    expected = []
    for job in sorted((ROOT / "examples").glob("*.yaml")):
        if job.stem != "sweep":  # no target of Kubernetes takes one
            each = render_for(job, clusters, ["first", "other"])
            write(kustomize(each), tmp_path / job.stem)
            expected += list(manifests(each[1][1]).values())
    overlays = [str(p.relative_to(tmp_path)) for p in tmp_path.glob("*/overlays/other")]
    (tmp_path / "kustomization.yaml").write_text(yaml_text({"resources": sorted(overlays)}))
    assert in_order(documents(tmp_path)) == in_order(expected)


def in_order(trees: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(trees, key=lambda tree: (tree["metadata"]["name"], tree["kind"]))


HOSTILE = [
    "", " lead", "trail ", "no", "null", "~", "1e3", "0x1", "2001-01-01", "1_000", "=", "<<", "*a",
    "a: b", "# c", "- d", "a'b\"c\\d", "x\ny\n", "\n", "---\n...", "{{ x }}", "{% raw %}",
    "$(HOME)", "$$(HOME)", "%d", "é ü ß", "\u2028", "\U0001f600", "\u200b", "\t", "|", ">", "@",
    "`", "x" * 70_000,
]  # fmt: skip


def test_values_of_any_kind_come_through_a_patch_as_they_are(tmp_path: Path) -> None:
    def job(values: list[str]) -> list[tuple[str, Rendered]]:
        file = tmp_path / f"{len(values)}.yaml"
        env = {f"V{n}": value for n, value in enumerate(values)}
        file.write_text(DEMO.read_text("utf-8") + yaml_text({"env": env}), "utf-8")
        return render_for(file, clusters_of("job", tmp_path), ["other"])

    [(_, plain)], [(_, hostile)] = job(["as", "it", "was"]), job(HOSTILE)
    more = [*HOSTILE[1:], HOSTILE[0]]
    [(_, moved)] = job(more)
    each = [("plain", plain), ("hostile", hostile), ("moved", moved)]
    write(kustomize(each), tmp_path / "from-plain")
    write(kustomize(each[1:]), tmp_path / "from-hostile")
    assert built(tmp_path / "from-plain/overlays/hostile") == manifests(hostile)
    assert built(tmp_path / "from-hostile/overlays/moved") == manifests(moved)
    found = manifests(moved)["Job"]["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {e["value"] for e in found if e["name"].startswith("V")} == {
        value.replace("$", "$$") for value in more
    }
