"""The outline of a job's model: the bundled GPT by formula, a user's from a file beside the job."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import Fault, FaultsError, UserError
from orchestrator.estimate.gpt import gpt_outline
from orchestrator.spec.train import BYTE_TOKENS

if TYPE_CHECKING:
    from orchestrator.estimate.inspected import Inspected, WrapAsked
    from orchestrator.estimate.outline import Outline
    from orchestrator.spec import JobSpec
    from orchestrator.spec.model import Model
    from orchestrator.spec.parallelism import Wrap

# Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.2; token
# files of 16 bits are most often made with its tokenizer.
GPT2_TOKENS = 50_257
MOST_TOKENIZER_BYTES = 64 * 2**20  # more is no tokenizer


def outline_of(spec: JobSpec, job_file: Path) -> Outline:
    """Return the outline of the job's model.

    Args:
        job_file: what the job was read from; a tokenizer, and what `orchestrate-trainer inspect`
            has written, are looked for in its folder.

    Raises UserError, with the command to run, where a factory's model has no such file or one of
    something else.
    """
    model = spec.train.model
    if model.sizes is None:
        return _of_factory(spec, job_file)
    vocab_size, assumed = _vocabulary(spec, job_file.parent)
    outline = gpt_outline(model.sizes, vocab_size, model.tied, model.dropout)
    return replace(outline, left_out=(*outline.left_out, *assumed, *_other_units(spec)))


def _other_units(spec: JobSpec) -> Iterator[str]:
    """What to say where the bundled GPT is not sharded block by block."""
    by = spec.parallelism.wrap.by
    if spec.parallelism.uses_fsdp and by != "block":
        yield f"units by parallelism.wrap.by: {by}; all is reckoned with each block as a unit"


def inspected_path(job_file: Path) -> Path:
    """Return where the file about a factory's model lies: job.yaml has job.inspected.json."""
    return job_file.with_name(f"{job_file.stem}.inspected.json")


def inspect_command(spec: JobSpec, job_file: Path) -> str:
    """Return the command that writes the file, for the job's folder."""
    model = spec.train.model
    words = ["orchestrate-trainer", "inspect", "--factory", str(model.factory)]
    if model.args:
        words += ["--args", json.dumps(model.args, sort_keys=True)]
    words += ["--context", str(model.context), "--wrap", _wrap_words(spec.parallelism.wrap)]
    words += ["-o", inspected_path(job_file).name]
    return f"cd {shlex.quote(str(job_file.parent.absolute()))} && {shlex.join(words)}"


def _wrap_words(wrap: Wrap | WrapAsked) -> str:
    """block, class:NAME,NAME or size:NUMBER, as the command takes it."""
    rest = {"block": "", "class": ":" + ",".join(wrap.classes), "size": f":{wrap.min_parameters}"}
    return wrap.by + rest[wrap.by]


def _of_factory(spec: JobSpec, job_file: Path) -> Outline:
    from orchestrator.estimate.inspected import read_inspected  # late: most jobs have no factory

    path, command = inspected_path(job_file), inspect_command(spec, job_file)
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise UserError(
            f"{path}: is not there, and without it nothing is known of the model that"
            f" {spec.train.model.factory} makes. Write it, where torch is:\n  {command}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}). Write it again:\n  {command}") from None
    inspected = read_inspected(text, str(path))
    stale = [
        Fault(str(path), None, key, f"is {there}, and the job has {asked}", f"run {command}")
        for key, there, asked in _differences(inspected, spec.train.model, spec.parallelism.wrap)
    ]
    if stale:
        raise FaultsError(stale)
    return inspected.outline


def _differences(
    inspected: Inspected, model: Model, wrap: Wrap
) -> Iterator[tuple[str, object, object]]:
    here, asked = [json.dumps(args, sort_keys=True) for args in (inspected.args, model.args)]
    pairs = {
        "factory": (inspected.factory, model.factory),
        "args": (here, asked),
        "context": (inspected.context, model.context),
        "wrap": (_wrap_words(inspected.wrap), _wrap_words(wrap)),
    }
    return ((key, there, asked) for key, (there, asked) in pairs.items() if there != asked)


def _vocabulary(spec: JobSpec, folder: Path) -> tuple[int, list[str]]:
    """Number of different tokens, and what was assumed for it."""
    data, given = spec.train.data, spec.train.model.vocab_size
    if given is not None:
        return given, []
    if data.tokenizer is not None:
        found = _tokens_of(folder / data.tokenizer)
        if found is not None:
            return found, []
    elif data.tokens is None:
        return BYTE_TOKENS, []
    assumed = f"the number of tokens is taken as {GPT2_TOKENS}: give train.model.vocab_size"
    return GPT2_TOKENS, [assumed]


def _tokens_of(path: Path) -> int | None:
    """How many tokens a tokenizer.json of Hugging Face's tokenizers has; None: it does not tell."""
    try:
        if path.stat().st_size > MOST_TOKENIZER_BYTES:
            return None
        content = json.loads(path.read_bytes())
        vocabulary = content["model"]["vocab"]  # names with numbers, or pairs of a name and a score
        names = vocabulary if isinstance(vocabulary, dict) else [pair[0] for pair in vocabulary]
        return len({*names, *(token["content"] for token in content.get("added_tokens", []))})
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None  # the trainer says what is wrong with it
