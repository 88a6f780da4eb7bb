"""What looks like a secret is refused wherever it is written, and repeated nowhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import FaultsError
from orchestrator.secret_text import has_secret, is_secret, masked_line
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job
from orchestrator.variables import libraries

SECRET_NAMES = [
    "AWS_SECRET_ACCESS_KEY", "SECRET_KEY", "PRIVATE_KEY", "SSH_KEY", "OPENAI_KEY", "GITHUB_PAT",
    "PASSWD", "AZURE_STORAGE_KEY", "AZURE_STORAGE_CONNECTION_STRING", "DOCKER_AUTH_CONFIG",
    "AUTHORIZATION", "SLACK_WEBHOOK", "SLACK_WEBHOOK_URL", "HF_TOKEN", "HF_TOKEN_2",
    "WANDB_API_KEY",
    "apikey", "my_password", "DB_PASS", "MYSQL_PWD", "PGPASSWORD", "SENTRY_DSN", "clientSecret",
    "example.org/api-token", "HF_TOKEN_FILE", "AWS_CREDENTIALS", "OPENAI_KEY_PROD", "token",
]  # fmt: skip
ORDINARY_NAMES = [
    "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEYBOARD", "MONKEY", "NCCL_IB_PKEY", "SSL_CERT_FILE",
    "PWD", "PATH", "KEY", "SORT_KEY", "SSH_PUBLIC_KEY", "eos_token", "token_dim", "AUTHOR",
    "COMPASS", "PATTERN", "SECRET_NAME", "secretProviderClass", "example.org/secret-ref",
]  # fmt: skip
LONG = "Ab1" * 12
SHAPED = [
    "postgres://u:pw@h/db", "http://user:p%40w@proxy:3128", "see AKIAIOSFODNN7EXAMPLE",
    f"ghp_{LONG}",
    f"github_pat_{LONG}", f"hf_{LONG}", f"sk-{LONG}", f"sk-proj-{LONG}", f"glpat-{LONG}",
    "-----BEGIN PRIVATE KEY-----\nMII", "-----BEGIN OPENSSH PRIVATE KEY-----",
    f"Bearer {LONG}", f"eyJ{LONG}.eyJ{LONG}.x", "https://hooks.slack.com/services/T0/B0/x",
    f"DefaultEndpointsProtocol=https;AccountKey={LONG}==",
]  # fmt: skip
PLAIN = [
    "https://example.org:8080/a@b", "s3://bucket/a:b", "user@host:/path", "a://b", "task-" + LONG,
    "sk-learn-with-a-rather-long-name", "hf_internal_testing/tiny-random-gpt2", "-----BEGIN",
    "-----BEGIN CERTIFICATE-----", "sha256:" + "ab12" * 16, "", "AKIA", "team-a",
]  # fmt: skip
# Where a job may say any text: the lines around a name and a value, and the key of the fault.
JOB = "name: good\ntrain: {{model: {model}, data: {data}, steps: 5}}\n{more}\n"
MODEL, DATA = "{preset: nano}", "{python_docs: true}"
FACTORY = "{factory: 'a:b', context: 8, args: %s}"


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_says_that_it_is_a_secret(name: str) -> None:
    assert is_secret(name, "hunter2")
    assert not is_secret(name, "")
    assert not is_secret(name, "true")


@pytest.mark.parametrize("name", ORDINARY_NAMES)
def test_a_name_that_only_looks_alike_is_none(name: str) -> None:
    assert not is_secret(name, "hunter2")


@pytest.mark.parametrize(
    "name", ["SSH_KEY_FILE", "HF_TOKEN_PATH", "AWS_SHARED_CREDENTIALS_FILE", "SECRETS_DIR",
             "GOOGLE_APPLICATION_CREDENTIALS"],
)  # fmt: skip
def test_the_place_of_a_secret_is_none(name: str) -> None:
    assert not is_secret(name, "/run/secrets/one")
    assert is_secret(name, "hunter2")


@pytest.mark.parametrize("value", SHAPED)
def test_a_value_says_it_whatever_its_name(value: str) -> None:
    assert has_secret(value)
    assert is_secret("NOTE", value)


@pytest.mark.parametrize("value", PLAIN)
def test_a_value_that_only_looks_alike_is_none(value: str) -> None:
    assert not has_secret(value)


def test_no_variable_of_a_library_is_taken_for_a_secret() -> None:
    names = [name for library in libraries().values() for name in library.variables]
    assert len(names) > 100
    assert [name for name in names if is_secret(name, "x")] == []


def job(place: str, name: str, value: str) -> str:
    """A job file with one text in that place."""
    entry = f"{{{name}: {value!r}}}"
    if place in ("env", "network.env"):
        more = f"env: {entry}" if place == "env" else f"network: {{env: {entry}}}"
        return JOB.format(model=MODEL, data=DATA, more=more)
    if place.startswith("args"):
        args = entry if place == "args" else f"{{a: [{entry}]}}"
        return JOB.format(model=FACTORY % args, data=DATA, more="")
    facts = f"annotations: {entry}"
    if place == "csi_attributes":
        facts = f"volumes: {{a: {{csi: d, mount: /m, csi_attributes: {entry}}}}}"
    return JOB.format(
        model=MODEL, data=DATA, more=f"clusters: {{east: {{kubernetes: {{{facts}}}}}}}"
    )


@pytest.mark.parametrize(
    "place", ["env", "network.env", "args", "args.nested", "annotations", "csi_attributes"]
)
@pytest.mark.parametrize(
    ("name", "value"), [("SSH_KEY", "hunter2"), ("NOTE", "postgres://u:hunter2@h/db")]
)
def test_it_is_refused_wherever_it_is_written(place: str, name: str, value: str) -> None:
    with pytest.raises(FaultsError, match="looks like a secret") as caught:
        resolve_job(parse_document(job(place, name, value).encode(), "job.yaml"))
    assert [fault.key.rpartition(".")[2] for fault in caught.value.faults] == [name]
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("value", ["hunter2", "postgres://u:hunter2@h/db"])
def test_a_sweep_is_no_place_for_it(value: str) -> None:
    grid = f"sweep: {{grid: {{train.model.args.api_key: [{value!r}, b]}}}}"
    text = JOB.format(model=FACTORY % "{}", data=DATA, more=grid)
    with pytest.raises(FaultsError, match="looks like a secret") as caught:
        resolve_job(parse_document(text.encode(), "job.yaml"))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("token", [f"ghp_{LONG}", f"hf_{LONG}", "AKIAIOSFODNN7EXAMPLE"])
def test_a_label_and_a_path_are_no_place_for_it_either(token: str) -> None:
    label = f"clusters: {{east: {{kubernetes: {{labels: {{team: {token}}}}}}}}}"
    path = f"{{text: 's3://u:{token}@bucket/a'}}"
    for data, more in ((DATA, label), (path, "")):
        text = JOB.format(model=MODEL, data=data, more=more)
        with pytest.raises(FaultsError, match="looks like a secret") as caught:
            resolve_job(parse_document(text.encode(), "job.yaml"))
        assert token not in str(caught.value)


def test_a_number_is_a_secret_too_and_is_not_repeated() -> None:
    text = JOB.format(model=MODEL, data=DATA, more="env: {DB_PASSWORD: 424242}")
    with pytest.raises(FaultsError, match="shell that submits") as caught:
        resolve_job(parse_document(text.encode(), "job.yaml"))
    assert "424242" not in str(caught.value)


@given(
    st.sampled_from(SECRET_NAMES[:16]),
    st.text("abcdefghijk", min_size=8),
    st.sampled_from(["{0}: {1}", "{0}={1}", '"{0}": "{1}"', "x: {{a: 1, {0}: {1}}}"]),
)
def test_what_is_behind_the_name_of_a_secret_is_masked(name: str, value: str, how: str) -> None:
    line = masked_line(how.format(name, value))
    assert value not in line
    assert name in line


@given(st.text(), st.sampled_from(SHAPED[:9]), st.text())
def test_what_has_the_looks_of_a_secret_is_masked(before: str, secret: str, after: str) -> None:
    line = masked_line(f"{before} {secret} {after}")
    assert secret not in line
    assert not has_secret(line) or has_secret(f"{before} {after}")


@given(st.text(), st.text())
def test_any_name_and_any_value_are_judged(name: str, value: str) -> None:
    assert is_secret(name, value) in (True, False)


@pytest.mark.parametrize("part", ["a", "a1", "a=", "://", "eyJ-", "sk--", "a:", "-----BEGIN ", "A"])
@pytest.mark.timeout(20)
def test_a_long_line_takes_no_long_time(part: str) -> None:
    line = part * (2**17 // len(part))
    assert masked_line(line)
    assert not has_secret(line)
