"""Any mix of a site's keys gives valid, safe objects, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k8s.objects import manifests, pod_templates
from k8s.podsecurity import broken
from k8s.rules import every_fault
from k8s.schemas import needs_crds, releases
from k8s.sites import JOBS, SITES, TARGETS, render_job
from orchestrator.errors import FaultsError

NEWEST = releases()[-1]
MORE: dict[str, list[Any]] = {
    "pod_security": ["restricted", "baseline", "none"],
    "run_as_user": [None, 0, 1000, 2**31],
    "fs_group": [None, 0, 5],
    "shm_size": ["1MiB", "64MiB", "100000000B", "2TiB"],
    "trainjob_version": ["2.1", "2.2", "2.3"],
    "keep_finished": ["1s", "7d"],
    "volumes": [{"cache": {"host_path": "/cache", "mount": "/cache"}}],
    "extra_resources": [{"vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "1Gi"}],
    "kueue": [{"queue": "q", "topology": "unconstrained"}, {"queue": "q", "topology": "required"}],
    "coscheduling": [{}],
    "volcano": [{}],
    "tolerations": [{"operator": "Exists"}, [{"key": "a"}, {"key": "a"}]],
    "runs": [{"empty_dir": True}, {"host_path": "/runs"}],
    "pack": ["kubernetes.io/hostname"],
}
VALUES = {
    key: [*(site[key] for site in SITES.values() if key in site), *MORE.get(key, ())]
    for key in sorted({*MORE, *(key for site in SITES.values() for key in site)})
}
sites = st.lists(st.sampled_from(sorted(VALUES)), max_size=5, unique=True).flatmap(
    lambda keys: st.fixed_dictionaries({key: st.sampled_from(VALUES[key]) for key in keys})
)


@needs_crds
@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sites, st.sampled_from(sorted(JOBS)))
def test_a_mix_of_keys_is_valid_and_as_safe_as_it_says(
    target: str, keys: dict[str, Any], job: str
) -> None:
    site = {"runs": {"pvc": "runs"}, **keys}
    try:
        files = render_job(JOBS[job], target, site).files
    except FaultsError:
        return
    level = site.get("pod_security", "restricted")
    for name, text in files.items():
        for manifest in manifests(text) if name.endswith(".yaml") else ():
            assert every_fault(manifest, NEWEST) == []
            for pod in pod_templates(manifest):
                assert level == "none" or broken(pod.spec, level) == []


def test_most_mixes_are_not_refused() -> None:
    """Else the property above would say nothing."""
    for key, values in VALUES.items():
        for value in values[:1]:
            site = {"runs": {"pvc": "runs"}, "pod_security": "none", key: value}
            render_job(JOBS["elastic"], "job", site)
