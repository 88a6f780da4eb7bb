"""The permissions that docs/kubernetes-backend.md lists are those that the commands use."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from k8s.apiserver import ApiServer
from k8s.site import Cli, Site
from orchestrator.backends.kubernetes_kinds import TARGETS

ROOT = Path(__file__).resolve().parent.parent.parent
PATH = re.compile(r"/(?:api|apis/([^/]+))/v[^/]+/namespaces/default/([a-z]+)(/[^/?]+)?(/[a-z]+)?")
Verbs = dict[str, set[str]]


def listed() -> Verbs:
    """The page's table."""
    text = (ROOT / "docs" / "kubernetes-backend.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z0-9./-]+)` \| ([a-z, ]+) \|", text, re.MULTILINE)
    return {resource: set(verbs.split(", ")) for resource, verbs in rows}


def used(server: ApiServer) -> Verbs:
    """What each request needed."""
    found: Verbs = defaultdict(set)
    for request in server.requests:
        method, _, path = request.partition(" ")
        match = PATH.match(path)
        assert match, request
        group, plural, name, sub = match.groups()
        resource = f"{plural}{sub or ''}" + (f".{group}" if group else "")
        found[resource] |= _verbs(method, bool(name), "watch=true" in path)
    return found


def _verbs(method: str, is_one: bool, is_watch: bool) -> set[str]:
    if method == "GET":
        return {"get"} if is_one else {"watch" if is_watch else "list"}
    # An apply of what is not there needs the permission to create, too.
    return {"POST": {"create"}, "PATCH": {"patch", "create"}, "DELETE": {"delete"}}[method]


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_a_run_needs_no_other(server: ApiServer, tmp_path: Path, cli: Cli, target: str) -> None:
    site = Site(server, tmp_path, target, cli)
    site.ok("validate", "job.yaml", "--online")
    site.ok("submit", "job.yaml")
    site.pod()
    for command in (("status", "demo"), ("list",), ("cancel", "demo", "--now")):
        site.ok(*command)
    site.ok("submit", "job.yaml")
    server.requests = [request for request in server.requests if not request.endswith("/version")]
    own, table = used(server), listed()
    assert {resource: verbs - table.get(resource, set()) for resource, verbs in own.items()} == {
        resource: set() for resource in own
    }
    for resource in (site.target.kind.resource, "configmaps"):
        assert own[resource] == table[resource]


def test_the_role_for_users_is_the_table() -> None:
    documents = yaml.safe_load_all((ROOT / "k8s" / "rbac" / "users.yaml").read_text("utf-8"))
    (role,) = [one for one in documents if one["kind"] == "Role"]
    given = {
        f"{resource}.{group}" if group else resource: set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert given == listed()
