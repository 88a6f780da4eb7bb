"""Where samples come from: text, token files, Python's own documentation, or made-up numbers."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.config import DataConfig, TrainerConfig
from trainer.contract import ConfigurationError
from trainer.samples import Array, Samples, Synthetic, Windows

BYTE_VOCABULARY = 256


@dataclass(frozen=True)
class Corpus:
    """What is trained on and what is validated on (None: nothing is).

    bytes_are_tokens: whether a token is a byte, so that a loss per token is one per byte.
    """

    train: Samples
    validation: Samples | None
    vocab_size: int
    bytes_are_tokens: bool


def load_corpus(config: TrainerConfig, workdir: Path) -> Corpus:
    """Open the data. Raises ConfigurationError for what is not there or does not fit."""
    data, context, given = config.data, config.model.context, config.model.vocab_size
    if data.kind == "synthetic":
        return _check(_synthetic(data, context, given or BYTE_VOCABULARY, config.seed), context)
    arrays, known = _token_arrays(data, data.paths, workdir)
    if data.validation_paths:
        held_out, _ = _token_arrays(data, data.validation_paths, workdir)
    else:
        arrays, held_out = _cut(arrays, data.validation_fraction)
    size = _vocabulary(data, known, given)
    wanted = bool(data.validation_paths) or data.validation_fraction > 0
    validation = Windows(held_out, context, size) if wanted else None
    corpus = Corpus(Windows(arrays, context, size), validation, size, _is_bytes(data))
    return _check(corpus, context)


def _is_bytes(config: DataConfig) -> bool:
    return config.kind == "python_docs" or (config.kind == "text" and config.tokenizer is None)


def _check(corpus: Corpus, context: int) -> Corpus:
    for name, samples in (("training", corpus.train), ("validation", corpus.validation)):
        if samples is not None and len(samples) == 0:
            raise ConfigurationError(
                f"train.data: the {name} part has no window of {context + 1} tokens; give more "
                "data, a smaller train.model.context, or another train.data.validation"
            )
    return corpus


def _synthetic(config: DataConfig, context: int, vocab_size: int, seed: int) -> Corpus:
    total = config.samples or 0
    held_out = int(total * config.validation_fraction)
    train = Synthetic(range(total - held_out), context, vocab_size, seed)
    rest = Synthetic(range(total - held_out, total), context, vocab_size, seed)
    return Corpus(train, rest if config.validation_fraction > 0 else None, vocab_size, False)


def _token_arrays(
    config: DataConfig, patterns: Sequence[str], workdir: Path
) -> tuple[list[Array], int | None]:
    """Tokens of the files, and the size of their vocabulary where the files tell it."""
    if config.kind == "tokens":
        return [_map(path, config.dtype) for path in _find(patterns, workdir)], None
    if config.kind == "python_docs" and not patterns:
        return [np.frombuffer(python_docs(), np.uint8)], BYTE_VOCABULARY
    paths = _find(patterns, workdir)
    if config.tokenizer is not None:
        return _tokenize(paths, workdir / config.tokenizer)
    return [np.frombuffer(b"".join(map(_read, paths)), np.uint8)], BYTE_VOCABULARY


def python_docs() -> bytes:
    """The text of Python's own documentation topics, which every CPython carries (PSF licence)."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics)).encode()


def _find(patterns: Sequence[str], workdir: Path) -> list[Path]:
    found: list[str] = []
    for pattern in patterns:
        matches = sorted(glob.glob(pattern, root_dir=workdir, recursive=True))
        files = [match for match in matches if (workdir / match).is_file()]
        if not files:
            raise ConfigurationError(
                f"train.data: no file matches {pattern!r} in {workdir} on this node; paths are "
                "relative to the folder of the job file and must be visible on every node"
            )
        found += files
    return [workdir / name for name in dict.fromkeys(found)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except PermissionError as error:
        raise _may_not_be_read("train.data", path) from error


def _may_not_be_read(key: str, path: Path) -> ConfigurationError:
    return ConfigurationError(f"{key}: {path} may not be read by this user; change its permissions")


def _map(path: Path, dtype: str) -> Array:
    size, item = path.stat().st_size, np.dtype(dtype).itemsize
    if size == 0 or size % item:
        raise ConfigurationError(
            f"train.data: {path} has {size} bytes, which is not a positive multiple of {item}; "
            f"it must hold nothing but little-endian {dtype} numbers"
        )
    try:
        return np.memmap(path, np.dtype(dtype).newbyteorder("<"), mode="r")
    except PermissionError as error:
        raise _may_not_be_read("train.data", path) from error


def _tokenize(paths: Sequence[Path], tokenizer_file: Path) -> tuple[list[Array], int]:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ConfigurationError(
            "train.data.tokenizer: needs the package tokenizers; "
            "install 'orchestrate-training[trainer]'"
        ) from error
    if not tokenizer_file.is_file():
        raise ConfigurationError(f"train.data.tokenizer: {tokenizer_file} is no file on this node")
    try:
        tokenizer = Tokenizer.from_str(tokenizer_file.read_text("utf-8"))
    except PermissionError as error:
        raise _may_not_be_read("train.data.tokenizer", tokenizer_file) from error
    except Exception as error:  # the package raises nothing narrower
        raise ConfigurationError(
            f"train.data.tokenizer: {tokenizer_file} is not a file that the package tokenizers can"
            f" read, such as tokenizer.json: {error}"
        ) from error
    arrays: list[Array] = []
    for path in paths:
        try:
            text = _read(path).decode()
        except UnicodeDecodeError as error:
            raise ConfigurationError(
                f"train.data: {path} is not UTF-8 at byte {error.start}; convert it, or leave "
                "train.data.tokenizer out to train on bytes"
            ) from error
        arrays.append(np.asarray(tokenizer.encode(text).ids, np.uint32))
    return arrays, int(tokenizer.get_vocab_size())


def _cut(arrays: Sequence[Array], fraction: float) -> tuple[list[Array], list[Array]]:
    """The arrays before and after the last `fraction` of all their tokens, by position."""
    remaining = sum(map(len, arrays)) - int(sum(map(len, arrays)) * fraction)
    before: list[Array] = []
    after: list[Array] = []
    for array in arrays:
        before.append(array[:remaining])
        after.append(array[remaining:])
        remaining = max(0, remaining - len(array))
    return before, after


def _vocabulary(config: DataConfig, known: int | None, given: int | None) -> int:
    if known is None and given is None:
        raise ConfigurationError(
            "train.model.vocab_size: is needed with train.data.tokens, whose files do not tell it"
        )
    if known is not None and given is not None and given < known:
        raise ConfigurationError(
            f"train.model.vocab_size: {given} is smaller than the vocabulary of "
            f"train.data.{config.kind}, {known}; leave it out or set it to {known} or more"
        )
    return given if given is not None else known or 0
