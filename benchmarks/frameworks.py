"""The same training by other libraries, as their documentation has it; those that are installed.

    pip install --constraint benchmarks/constraints.txt accelerate lightning-fabric transformers

A library that is not installed is left out of the table.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.bare import Setting

DEADLINE_S = 600


def available() -> dict[str, Callable[[Setting], Any]]:
    """How to make each contestant whose library is installed, by its name."""
    return {
        label: make
        for label, (library, make) in MAKERS.items()
        if importlib.util.find_spec(library) is not None
    }


def import_all() -> None:
    """Import them before the ranks are forked, so that each rank need not."""
    for library in {library for library, _ in MAKERS.values()}:
        if importlib.util.find_spec(library) is not None:
            importlib.import_module(library)


class Accelerate:
    """huggingface/accelerate, `Accelerator.prepare`."""

    def __init__(self, setting: Setting) -> None:
        from accelerate import Accelerator

        self.accelerator = Accelerator(cpu=True)
        module = setting.model()
        self.model, self.optimizer = self.accelerator.prepare(module, setting.optimizer(module))
        self.clip_norm = setting.config.optimizer.clip_norm
        self.batches = setting.batches()

    def advance(self, steps: int) -> None:
        """Do this many steps."""
        for _ in range(steps):
            batch = next(self.batches)
            with self.accelerator.accumulate(self.model):
                self.optimizer.zero_grad()
                self.accelerator.backward(self.model(batch[:, :-1], batch[:, 1:]))
                self.accelerator.clip_grad_norm_(self.model.parameters(), self.clip_norm)
                self.optimizer.step()


class Fabric:
    """Lightning-AI/pytorch-lightning, lightning_fabric, `Fabric.setup`."""

    def __init__(self, setting: Setting) -> None:
        import lightning_fabric

        os.environ |= {"TORCHELASTIC_RUN_ID": "benchmark", "GROUP_RANK": "0"}
        self.fabric = lightning_fabric.Fabric(
            accelerator="cpu", devices=setting.num_ranks, strategy="ddp"
        )
        self.fabric.launch()
        module = setting.model()
        self.model, self.optimizer = self.fabric.setup(module, setting.optimizer(module))
        self.clip_norm = setting.config.optimizer.clip_norm
        self.batches = setting.batches()

    def advance(self, steps: int) -> None:
        """Do this many steps."""
        for _ in range(steps):
            batch = next(self.batches)
            self.optimizer.zero_grad()
            self.fabric.backward(self.model(batch[:, :-1], batch[:, 1:]))
            self.fabric.clip_gradients(self.model, self.optimizer, max_norm=self.clip_norm)
            self.optimizer.step()


class HuggingFaceTrainer:
    """huggingface/transformers, `Trainer.train`, in a thread of its own that waits for its turn."""

    def __init__(self, setting: Setting) -> None:
        self._turn, self._ended = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._train, args=(setting,), daemon=True)
        self._steps_left = 0
        self._thread.start()

    def advance(self, steps: int) -> None:
        """Do this many steps. Raises RuntimeError if it failed or takes too long."""
        self._steps_left = steps
        self._turn.release()
        if not self._ended.acquire(timeout=DEADLINE_S) or self._error is not None:
            raise RuntimeError("transformers.Trainer failed") from self._error

    def _train(self, setting: Setting) -> None:
        try:
            self._turn.acquire()
            self._build(setting).train()
        except BaseException as error:  # whoever waits for the turn must hear of it
            self._error = error
            self._ended.release()

    def _step_ended(self) -> None:
        self._steps_left -= 1
        if self._steps_left == 0:
            self._ended.release()
            self._turn.acquire()

    def _build(self, setting: Setting) -> Any:
        import transformers

        outer = self

        class Turns(transformers.TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
                outer._step_ended()

        optimizer = setting.config.optimizer
        arguments = transformers.TrainingArguments(
            output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=10**6, save_strategy="no",
            logging_steps=10, report_to=[], disable_tqdm=True, max_grad_norm=optimizer.clip_norm,
            per_device_train_batch_size=1, lr_scheduler_type="constant",
            ddp_find_unused_parameters=False, dataloader_pin_memory=False,
        )  # fmt: skip
        module = _Dictionary(setting.model())
        trainer = transformers.Trainer(
            model=module, args=arguments, train_dataset=_Batches(setting), callbacks=[Turns()],
            optimizers=(setting.optimizer(module), None),
        )  # fmt: skip
        # Batches as they are: the order is the other contestants'.
        trainer.get_train_dataloader = lambda: DataLoader(_Batches(setting), batch_size=None)
        return trainer


class _Dictionary(nn.Module):
    """The model in the form that transformers.Trainer wants."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.module(tokens, labels)}


class _Batches(IterableDataset[dict[str, Tensor]]):
    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for batch in self.setting.batches():
            yield {"tokens": batch[:, :-1], "labels": batch[:, 1:]}


MAKERS: dict[str, tuple[str, Callable[[Setting], Any]]] = {
    "accelerate": ("accelerate", Accelerate),
    "Lightning Fabric": ("lightning_fabric", Fabric),
    "transformers.Trainer": ("transformers", HuggingFaceTrainer),
}
"""Label to the library's import name and what makes the contestant."""

if __name__ == "__main__":
    print(torch.__version__, *available(), sep="\n")
