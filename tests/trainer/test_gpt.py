"""The GPT and the user's own model. Forward passes alone: see ranks.py."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from runs import configuration
from trainer.config import TrainerConfig, parse_config
from trainer.contract import ConfigurationError
from trainer.model import GPT, build_hollow, build_whole, flops_per_token, generate
from trainer.optim import build_optimizer
from trainer.parallelized import Outline


def config(**changes: Any) -> TrainerConfig:
    return parse_config(configuration(**changes), "test")


def gpt(**changes: Any) -> GPT:
    model = build_whole(config(**changes), 256)
    assert isinstance(model, GPT)
    return model.eval()


@torch.no_grad()
def test_a_position_sees_itself_and_what_is_before_it() -> None:
    model = gpt()
    tokens = torch.arange(16).view(1, 16)
    changed = tokens.clone()
    changed[0, 9] = 200
    before, after = model(tokens), model(changed)
    assert before.shape == (1, 16, 256)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


@torch.no_grad()
def test_the_first_loss_is_that_of_guessing() -> None:
    tokens = torch.randint(256, (4, 17), generator=torch.Generator().manual_seed(1))
    loss = gpt()(tokens[:, :-1], tokens[:, 1:])
    assert loss.shape == ()
    assert float(loss) == pytest.approx(math.log(256), abs=0.1)


def test_the_head_is_tied_by_default() -> None:
    tied, untied = gpt(), gpt(model__tied=False)
    assert tied.head.weight is tied.token.weight
    assert untied.head.weight is not untied.token.weight


def test_gpt2_has_its_known_number_of_parameters() -> None:
    sizes = {"layers": 12, "heads": 12, "width": 768, "context": 1024}
    model = build_hollow(config(**{f"model__{k}": v for k, v in sizes.items()}), 50257)
    assert sum(p.numel() for p in model.parameters()) == 124_439_808


def test_flops_per_token() -> None:
    model, sizes = gpt(), config().model
    matrices = sum(p.numel() for p in model.parameters()) - model.position.weight.numel()
    assert flops_per_token(model, sizes) == 6 * matrices + 12 * 2 * 32 * 16
    assert flops_per_token(torch.nn.Linear(1, 1), sizes) is None


def test_generating_leaves_the_random_state_alone() -> None:
    model = gpt(model__dropout=0.5).train()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = generate(model, torch.tensor([65]), 30, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(generate(model, torch.tensor([65]), 30, seed=1), first)
    assert first.shape == (30,)
    assert model.training


def test_matrices_decay_and_vectors_do_not() -> None:
    model = gpt()
    outline = Outline.of(model, config())
    optimizer = build_optimizer(model.named_parameters(), outline.decayed, config().optimizer)
    decayed, others = optimizer.param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert {p.dim() for p in decayed["params"]} == {2}
    assert {p.dim() for p in others["params"]} == {1}
    count = len(decayed["params"]) + len(others["params"])
    assert count == len(list(model.parameters()))


FACTORIES = """
import torch

def good(width):
    return torch.nn.Linear(width, 1)

def bad(width):
    raise ValueError("width is odd")

def number(width):
    return width

def offline(width):
    raise ConnectionError("no network")
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"factories_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_factory_is_called_with_its_arguments(factories: str) -> None:
    model = build_whole(config(model__factory=f"{factories}:good", model__args={"width": 3}), 256)
    assert isinstance(model, torch.nn.Linear)
    assert model.in_features == 3


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        ("bad", {"width": 3}, "ValueError: width is odd .*:8\\)"),
        ("good", {}, "TypeError"),
        ("none", {}, "AttributeError"),
        ("number", {"width": 3}, "returned int; it must return a torch.nn.Module"),
    ],
)
def test_a_factory_that_would_fail_again(
    factories: str, function: str, args: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build_whole(config(model__factory=f"{factories}:{function}", model__args=args), 256)


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match="ModuleNotFoundError"):
        build_whole(config(model__factory="no.such.module:build"), 256)


def test_a_factory_that_may_do_better_next_time(factories: str) -> None:
    with pytest.raises(ConnectionError):
        build_whole(config(model__factory=f"{factories}:offline", model__args={"width": 1}), 256)


def test_recomputation_of_a_users_model_is_the_users(factories: str) -> None:
    changes = {"parallelism__activation_checkpointing": "full"}
    with pytest.raises(ConfigurationError, match="is for the built-in model"):
        config(model__factory=f"{factories}:good", **changes)
