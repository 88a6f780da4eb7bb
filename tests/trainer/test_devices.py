"""The device of a rank; kinds that are not here are shown by a stand-in for their package."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ranks import run_ranks
from trainer.contract import ConfigurationError, Contract
from trainer.devices import device_of, module_of

NOWHERE = Path("/nonexistent")


def contract(local_rank: int) -> Contract:
    return Contract(local_rank, local_rank, 2, 1, NOWHERE, NOWHERE, NOWHERE)


def test_the_cpu_has_no_module_of_its_own() -> None:
    device = device_of("cpu", contract(0))
    assert (device.type, module_of(device)) == ("cpu", None)


@pytest.mark.parametrize(("kind", "name"), [("cuda", "GPU"), ("xpu", "GPU")])
@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has a GPU")
def test_a_rank_without_a_device_says_so(kind: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"needs {name} 1, but torch sees 0 {name}\(s\)"):
        device_of(kind, contract(1))


@pytest.mark.parametrize(("kind", "package"), [("npu", "torch_npu"), ("mlu", "torch_mlu")])
def test_a_missing_package_is_named_with_what_to_do(kind: str, package: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        device_of(kind, contract(0))
    words = f'network.backend: device "{kind}" needs the Python package {package}, which '
    assert str(raised.value).startswith(words)
    assert f"install the release of {package} for this torch" in str(raised.value)


PACKAGE = """
import torch, types
torch.utils.rename_privateuse1_backend("mlu")
chosen = []
module = types.ModuleType("torch.mlu")
module.device_count = lambda: 2
module.set_device = chosen.append
torch._register_device_module("mlu", module)
"""


def on_stand_in(folder: str) -> SimpleNamespace:
    sys.path.insert(0, folder)
    device = device_of("mlu", contract(1))
    with pytest.raises(ConfigurationError, match=r"local rank 2 needs MLU 2, but torch sees 2 MLU"):
        device_of("mlu", contract(2))
    chosen = sys.modules["torch_mlu"].chosen
    return SimpleNamespace(device=str(device), chosen=[str(d) for d in chosen])


def test_a_package_that_adds_a_kind_of_device_is_imported(tmp_path: Path) -> None:
    (tmp_path / "torch_mlu.py").write_text(PACKAGE)
    (found,) = run_ranks(1, on_stand_in, str(tmp_path))
    assert (found.device, found.chosen) == ("mlu:1", ["mlu:1"])
