"""Maps of the section `kubernetes` whose names matter too: labels, annotations, resources, volumes.

All faulty entries of a map are told at once, each at its place.
"""

import re
from collections.abc import Callable, Iterator
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from orchestrator.errors import quoted
from orchestrator.secret_text import is_secret
from orchestrator.spec.base import Problem, TypeWords, problems_error
from orchestrator.spec.environment import variable_problems
from orchestrator.spec.kubernetes_types import (
    DNS_LABEL,
    KEY_PATTERN,
    MAX_PREFIX,
    RESOURCE_PATTERN,
    VALUE_PATTERN,
)

Check = Callable[[str, str], Iterator[Problem]]


def _checked(check: Check) -> BeforeValidator:
    """Return what refuses a map with a value that is no text or with an entry that `check` faults,
    all entries at once."""

    def validate(value: object) -> object:
        if not isinstance(value, dict):
            return value
        problems = [p for name, text in value.items() for p in _entry(check, str(name), text)]
        if problems:
            raise problems_error(problems)
        return value

    return BeforeValidator(validate)


def _entry(check: Check, name: str, value: object) -> Iterator[Problem]:
    if isinstance(value, str):
        yield from (problem.under((name,)) for problem in check(name, value))
        return
    from orchestrator.spec.words import shown  # late: maps without faults need no words

    fix = "with --set a name with dots is written in braces: --set 'PATH={NAME: VALUE}'"
    if isinstance(value, (bool, int, float)):
        fix = f'put it in quotes: "{shown(value)}"'
    yield Problem((name,), f"a text belongs here, not {shown(value)}", fix)


def _key_problems(name: str) -> Iterator[Problem]:
    prefix = name.rpartition("/")[0]
    if not re.fullmatch(KEY_PATTERN, name) or len(prefix) > MAX_PREFIX:
        yield Problem(
            (),
            f"{quoted(name)} is no key that Kubernetes takes: name or prefix/name, the name of at "
            "most 63 letters, digits, hyphens, underscores and dots, the prefix a DNS name",
            "write it like example.org/team",
            "key",
        )


def _value_problems(value: str) -> Iterator[Problem]:
    if not re.fullmatch(VALUE_PATTERN, value):
        yield Problem(
            (),
            f"{quoted(value)} is no value of a label: at most 63 letters, digits, hyphens, "
            "underscores and dots, a letter or digit first and last",
            "shorten it, or write it below annotations, where any text may be",
        )


# What the launcher, Kubernetes and the operators set or read themselves.
OWN_LABELS = {
    "app.kubernetes.io/managed-by": "the launcher",
    "app.kubernetes.io/name": "the launcher",
    "controller-uid": "Kubernetes",
    "job-name": "Kubernetes",
    "kueue.x-k8s.io/priority-class": "kubernetes.kueue.priority",
    "kueue.x-k8s.io/queue-name": "kubernetes.kueue.queue",
    "sidecar.istio.io/inject": "the launcher",
}
OWN_PREFIXES = {
    "k8s.io": "Kubernetes",
    "kubernetes.io": "Kubernetes",
    "orchestrate.dev": "the launcher",
    "trainer.kubeflow.org": "the operator",
    "training.kubeflow.org": "the operator",
}
FREE_PREFIX = "app.kubernetes.io"  # kubernetes.io, "Recommended Labels": for users
OWN_ANNOTATIONS = {
    "batch.kubernetes.io/job-completion-index": "Kubernetes",
    "kubectl.kubernetes.io/last-applied-configuration": "kubectl",
    "kueue.x-k8s.io/podset-preferred-topology": "kubernetes.kueue.topology",
    "kueue.x-k8s.io/podset-required-topology": "kubernetes.kueue.topology",
    "kueue.x-k8s.io/podset-unconstrained-topology": "kubernetes.kueue.topology",
    "sidecar.istio.io/inject": "the launcher",
}


def _owner_of_label(name: str) -> str | None:
    """Return who sets a label; None for one that is the user's."""
    prefix = name.rpartition("/")[0]
    if name in OWN_LABELS or prefix == FREE_PREFIX:
        return OWN_LABELS.get(name)
    own = (by for end, by in OWN_PREFIXES.items() if f".{prefix}".endswith(f".{end}"))
    return next(own, None)


def _label_problems(name: str, value: str) -> Iterator[Problem]:
    owner = _owner_of_label(name)
    if owner is not None:
        yield Problem((), f"the label {quoted(name, 80)} is set by {owner}", "remove it", "key")
        return
    yield from _key_problems(name)
    yield from _value_problems(value)


def _selector_problems(name: str, value: str) -> Iterator[Problem]:
    yield from _key_problems(name)
    yield from _value_problems(value)


def _annotation_problems(name: str, value: str) -> Iterator[Problem]:
    ours = name.startswith("orchestrate.dev/")
    owner = "the launcher" if ours else OWN_ANNOTATIONS.get(name)
    if owner is not None:
        yield Problem(
            (), f"the annotation {quoted(name, 80)} is set by {owner}", "remove it", "key"
        )
        return
    # Upper-case letters are allowed in the prefix: the server looks at the key in lower case.
    yield from _key_problems(name.lower())
    yield from _text_problems(name, value)


# Vault, "Agent Injector annotations": the paths of secrets in Vault.
VAULT_INJECTS = "vault.hashicorp.com/agent-inject-"


def _text_problems(name: str, value: str) -> Iterator[Problem]:
    if not _is_unicode(value):
        yield Problem((), "half of a surrogate pair, which is no character", "remove it")
    if not name.startswith(VAULT_INJECTS) and is_secret(name, value):
        yield Problem(
            (),
            f"{quoted(name, 80)} looks like a secret, and a value here would be readable in the "
            "rendered files",
            "put it in a Secret, and name that: secret_env, csi_secret, or a volume with secret",
            "key",
        )


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


SET_ELSEWHERE = {"cpu": "resources.cpus_per_rank", "memory": "resources.memory"}
SIZED = re.compile(r"ephemeral-storage|hugepages-[0-9]+(Ki|Mi|Gi)")
COUNT = re.compile(r"[1-9][0-9]{0,8}")
# kubernetes.io, "Resource Management for Pods and Containers"; m is a thousandth.
QUANTITY = re.compile(r"[1-9][0-9]{0,17}(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")


def _resource_problems(name: str, quantity: str) -> Iterator[Problem]:
    if name in SET_ELSEWHERE:
        yield Problem((), f"{name} is set by {SET_ELSEWHERE[name]}", "remove it", "key")
    elif SIZED.fullmatch(name):
        yield from _amount_problems(quantity)
    elif not _is_extended(name):
        yield Problem(
            (),
            f"{quoted(name)} is no resource that a pod can ask for: an extended one is "
            "domain/name, besides there are ephemeral-storage and hugepages-SIZE",
            "write it like rdma/ib",
            "key",
        )
    elif not COUNT.fullmatch(quantity):
        yield Problem(
            (),
            f"{quoted(quantity)} is no number of an extended resource: whole ones only, from 1",
            'write it like "1"',
        )


def _is_extended(name: str) -> bool:
    """Whether it is the name of an extended resource: a device's, none of Kubernetes' own."""
    prefix = name.rpartition("/")[0]
    native = f".{prefix}".endswith(".kubernetes.io") or name.startswith("requests.")
    return bool(re.fullmatch(RESOURCE_PATTERN, name)) and len(prefix) <= MAX_PREFIX and not native


def _amount_problems(quantity: str) -> Iterator[Problem]:
    if re.fullmatch(r"[0-9.]+m", quantity, re.ASCII):
        number = quantity[:-1]
        yield Problem(
            (),
            f"{quoted(quantity)} would be {number} thousandths of a byte, since m is milli",
            f"write {number}Mi (2^20 bytes each) or {number}M (10^6 bytes each)",
        )
    elif not QUANTITY.fullmatch(quantity):
        yield Problem((), f"{quoted(quantity)} is no amount of bytes", "write it like 10Gi or 500M")


def _volume_problems(name: str) -> Iterator[Problem]:
    if not re.fullmatch(DNS_LABEL, name) or len(name) > 63:
        yield Problem(
            (name,),
            f"{quoted(name)} is no name of a volume: at most 63 lower-case letters, digits and "
            "hyphens, a letter or digit first and last",
            "write it like data-1",
            "key",
        )
    elif name.startswith("orchestrate-"):
        yield Problem(
            (name,), "names from orchestrate- on are the launcher's", "give it another", "key"
        )


RUN_CONTAINERS = ("node", "pytorch")  # of the run's own, by target


def _sidecar_problems(name: str) -> Iterator[Problem]:
    if not re.fullmatch(DNS_LABEL, name) or len(name) > 63:
        yield Problem(
            (name,),
            f"{quoted(name)} is no name of a container: at most 63 lower-case letters, digits and "
            "hyphens, a letter or digit first and last",
            "take it from orchestrate fabric show",
            "key",
        )
    elif name in RUN_CONTAINERS:
        yield Problem((name,), "the run's own container has that name", "give it another", "key")


def _variable_problems(name: str) -> Iterator[Problem]:
    return variable_problems(name, "")


def _named(check: Callable[[str], Iterator[Problem]]) -> BeforeValidator:
    """Return what refuses a map with names that `check` faults, all of them at once."""

    def validate(value: object) -> object:
        names = value if isinstance(value, dict) else {}
        problems = [problem for name in names for problem in check(str(name))]
        if problems:
            raise problems_error(problems)
        return value

    return BeforeValidator(validate)


_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
_KEYED = {"type": "object", "propertyNames": {"pattern": KEY_PATTERN}}
_LABELS = _KEYED | {"additionalProperties": {"type": "string", "pattern": VALUE_PATTERN}}

Texts = Annotated[
    dict[str, str],
    _checked(_text_problems),
    WithJsonSchema(_STRINGS),
    TypeWords("map of names to texts"),
]
Labels = Annotated[
    dict[str, str],
    _checked(_label_problems),
    WithJsonSchema(_LABELS),
    TypeWords("map of labels to values"),
]
Selector = Annotated[
    dict[str, str],
    _checked(_selector_problems),
    WithJsonSchema(_LABELS),
    TypeWords("map of labels to values"),
]
Annotations = Annotated[
    dict[str, str],
    _checked(_annotation_problems),
    WithJsonSchema(_STRINGS),
    TypeWords("map of names to texts"),
]
ResourceCounts = Annotated[
    dict[str, str],
    _checked(_resource_problems),
    WithJsonSchema(_STRINGS),
    TypeWords("map of resources to quantities"),
]
VolumeNames = _named(_volume_problems)
SidecarNames = _named(_sidecar_problems)
VariableNames = _named(_variable_problems)
