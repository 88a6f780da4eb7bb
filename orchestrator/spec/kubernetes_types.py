"""Kubernetes' names, labels, quantities and paths as types of the section `kubernetes`.

What the API server refuses is refused here, with a place and in words. Rules: kubernetes.io,
"Object Names and IDs", "Labels and Selectors", "Annotations"; k8s.io/apimachinery
pkg/util/validation. Custom resources check less than that, so that a fault would show up late.
"""

from typing import Annotated

from pydantic import BeforeValidator, Field

from orchestrator.spec.base import TypeWords, as_tuple

DNS_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_SUBDOMAIN = rf"{DNS_LABEL}(\.{DNS_LABEL})*"
_PREFIX = rf"({_SUBDOMAIN}/)"
_SHORT = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
KEY_PATTERN = rf"^{_PREFIX}?{_SHORT}$"
VALUE_PATTERN = rf"^({_SHORT})?$"
RESOURCE_PATTERN = rf"^{_PREFIX}{_SHORT}$"
MAX_PREFIX = 253

ObjectName = Annotated[
    str,
    Field(pattern=rf"^{_SUBDOMAIN}$", max_length=253),
    TypeWords("name of an object (lower-case letters, digits, hyphens, dots)"),
]
ObjectNames = Annotated[
    tuple[ObjectName, ...],
    BeforeValidator(as_tuple),
    TypeWords("list of names of objects"),
]
LabelledName = Annotated[
    str,
    Field(pattern=rf"^{_SUBDOMAIN}$", max_length=63),
    TypeWords("name of an object (at most 63 lower-case letters, digits, hyphens, dots)"),
]
DnsLabel = Annotated[
    str,
    Field(pattern=rf"^{DNS_LABEL}$", max_length=63),
    TypeWords("name (at most 63 lower-case letters, digits, hyphens)"),
]
LabelKey = Annotated[
    str,
    Field(pattern=KEY_PATTERN, max_length=MAX_PREFIX + 64),
    TypeWords("name of a label (name or prefix/name)"),
]
LabelValue = Annotated[
    str,
    Field(pattern=VALUE_PATTERN),
    TypeWords("value of a label (at most 63 letters, digits, hyphens, underscores, dots)"),
]
LabelValues = Annotated[
    tuple[LabelValue, ...],
    BeforeValidator(as_tuple),
    TypeWords("list of values of labels"),
]
ResourceName = Annotated[
    str,
    Field(pattern=RESOURCE_PATTERN, max_length=MAX_PREFIX + 64),
    TypeWords("name of an extended resource (domain/name)"),
]
# pkg/apis/core/validation: ConfigMap and Secret keys.
SecretKeyName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=253), TypeWords("name of a key in a Secret")
]
# github.com/distribution/reference, "Grammar".
_HOST = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]+)?"
_COMPONENT = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_TAG = r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[a-z0-9]+:[0-9a-f]{32,128})?"
IMAGE_PATTERN = rf"^({_HOST}/)?{_COMPONENT}(/{_COMPONENT})*{_TAG}$"
Image = Annotated[
    str,
    Field(pattern=IMAGE_PATTERN, max_length=500),
    TypeWords("name of an image (registry/name:tag)"),
]
# A colon would split a mount: kubernetes.io API reference, VolumeMount.
Mount = Annotated[
    str, Field(pattern=r"^/[^\x00-\x1f\x7f:]*$"), TypeWords("absolute path without a colon")
]
AbsolutePath = Annotated[str, Field(pattern=r"^/[^\x00-\x1f\x7f]*$"), TypeWords("absolute path")]
Nfs = Annotated[
    str,
    Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]):/[^\x00-\x1f\x7f]*$"),
    TypeWords("NFS export (SERVER:/PATH)"),
]
Program = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-][^\x00-\x1f\x7f]*$"), TypeWords("path")]
# A NUL would end it: execve(2).
Words = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[^\x00]*$")], ...],
    BeforeValidator(as_tuple),
    TypeWords("list of texts"),
]
