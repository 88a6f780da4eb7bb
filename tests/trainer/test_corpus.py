"""Data from files: what is read, how it is split, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ranks import run_ranks
from runs import configuration
from trainer.config import parse_config
from trainer.contract import ConfigurationError
from trainer.data import Corpus, load_corpus, python_docs
from trainer.samples import Samples


def load(workdir: Path, **changes: Any) -> Corpus:
    changes = {f"data__{key}" if "__" not in key else key: value for key, value in changes.items()}
    return load_corpus(parse_config(configuration(**changes), "test"), workdir)


def text_of(samples: Samples) -> bytes:
    rows = samples[np.arange(len(samples))]
    return bytes([int(rows[0, 0]), *rows[:, 1:].flatten().tolist()])


def test_text_files_are_joined_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"b" * 40)
    (tmp_path / "a.txt").write_bytes(b"a" * 41)
    (tmp_path / "c.txt").write_bytes(b"")
    corpus = load(tmp_path, validation_fraction=0.0)
    assert text_of(corpus.train) == b"a" * 41 + b"b" * 40
    assert corpus.validation is None
    assert (corpus.vocab_size, corpus.bytes_are_tokens) == (256, True)


def test_the_last_part_of_the_text_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"t" * 161 + b"v" * 161)
    corpus = load(tmp_path, validation_fraction=0.5)
    assert set(text_of(corpus.train)) == {ord("t")}
    assert corpus.validation is not None
    assert set(text_of(corpus.validation)) == {ord("v")}


def test_files_for_validation_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"t" * 33)
    (tmp_path / "held").write_bytes(b"v" * 33)
    corpus = load(tmp_path, validation_paths=["held"])
    assert text_of(corpus.train) == b"t" * 33
    assert corpus.validation is not None
    assert text_of(corpus.validation) == b"v" * 33


def test_token_files_are_split_by_position_over_all_of_them(tmp_path: Path) -> None:
    np.arange(0, 100, dtype="<u2").tofile(tmp_path / "a.bin")
    np.arange(100, 200, dtype="<u2").tofile(tmp_path / "b.bin")
    corpus = load(
        tmp_path, kind="tokens", paths=["*.bin"], validation_fraction=0.25,
        model__vocab_size=200, model__context=7,
    )  # fmt: skip
    assert corpus.validation is not None
    train = corpus.train[np.arange(len(corpus.train))]
    held_out = corpus.validation[np.arange(len(corpus.validation))]
    assert int(train.max()) < 150 <= int(held_out.min())
    assert not corpus.bytes_are_tokens


def test_a_tokenizer_file(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    (tmp_path / "a.txt").write_text("a b c " * 20)
    corpus = load(tmp_path, tokenizer="words.json", validation_fraction=0.0, model__context=3)
    assert corpus.vocab_size == 3
    assert corpus.train[np.array([0])].tolist() == [[1, 2, 0, 1]]


def test_python_docs_need_no_file(tmp_path: Path) -> None:
    corpus = load(tmp_path, kind="python_docs", paths=[])
    assert python_docs().startswith(text_of(corpus.train)[:1000])
    assert len(python_docs()) > 100_000
    assert corpus.validation is not None


def test_synthetic_samples_are_split(tmp_path: Path) -> None:
    corpus = load(tmp_path, kind="synthetic", paths=[], samples=50, validation_fraction=0.2)
    assert corpus.validation is not None
    assert (len(corpus.train), len(corpus.validation)) == (40, 10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paths": ["missing/*.txt"]}, "no file matches 'missing/\\*.txt' in "),
        ({"model__vocab_size": 100}, "100 is smaller than the vocabulary"),
        ({"model__context": 5000}, "the training part has no window of 5001 tokens"),
        ({"validation_fraction": 0.01}, "the validation part has no window"),
        ({"tokenizer": "none.json"}, "none.json is no file"),
        ({"kind": "tokens", "paths": ["a.txt"]}, "vocab_size: is needed"),
        ({"kind": "tokens", "paths": ["a.txt"], "dtype": "uint32"}, "not a positive multiple of 4"),
        ({"kind": "synthetic", "samples": None}, "no window"),
    ],
)
def test_what_cannot_be_used_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 1002)
    with pytest.raises(ConfigurationError, match=message):
        load(tmp_path, **changes)


def test_text_that_is_not_utf8_is_refused_with_a_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(tmp_path / "t.json"))
    (tmp_path / "a.txt").write_bytes(b"ab\xff")
    with pytest.raises(ConfigurationError, match=r"a.txt is not UTF-8 at byte 2"):
        load(tmp_path, tokenizer="t.json")


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b"\xff\xfe"])
def test_a_broken_tokenizer_file_is_named(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "a.txt").write_bytes(b"text " * 40)
    (tmp_path / "broken.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"train\.data\.tokenizer: .*broken\.json"):
        load(tmp_path, tokenizer="broken.json")


def load_as_nobody(folder: Path, changes: dict[str, Any]) -> str:
    os.chdir(folder)
    os.seteuid(65534)
    try:
        load(Path(), **changes)
    except ConfigurationError as error:
        return str(error)
    return "was read"


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize(
    ("changes", "secret"),
    [({"kind": "tokens", "model__vocab_size": 300}, "a.txt"), ({}, "a.txt"),
     ({"tokenizer": "words.json"}, "words.json")],
)  # fmt: skip
def test_a_file_that_may_not_be_read_is_named(
    tmp_path: Path, changes: dict[str, Any], secret: str
) -> None:
    (tmp_path / "a.txt").write_bytes(b"text " * 40)
    (tmp_path / "words.json").write_bytes(b"{}")
    (tmp_path / secret).chmod(0)
    tmp_path.chmod(0o755)
    (said,) = run_ranks(1, load_as_nobody, tmp_path, changes)
    assert f"{secret} may not be read" in said
