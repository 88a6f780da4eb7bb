"""Cases of which the planner's figures are compared with torch's: as the trainer takes them, and
as the planner does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orchestrator.estimate.gpt import gpt_outline
from orchestrator.estimate.outline import Outline
from orchestrator.estimate.setting import Setting
from orchestrator.spec.parallelism import Ddp, Fsdp, Wrap
from orchestrator.spec.presets import ModelSizes
from runs import CONFIG, configuration


@dataclass(frozen=True)
class Forecast:
    """One job of `num_ranks` ranks on one node.

    options: of `parallelism`, with `ddp__` and `fsdp__` before the names of those sections.
    """

    strategy: str
    sizes: ModelSizes
    vocab_size: int
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    num_ranks: int = 4
    micro: int = 2
    accumulation: int = 1
    tied: bool = True

    @property
    def uses_fake(self) -> bool:
        """Whether tensors without memory do; DDP sums in C++, and FSDP1 asks for addresses."""
        setting = self.setting()
        return setting.uses_fsdp and setting.fsdp.version == 2

    @property
    def outline(self) -> Outline:
        """As the planner has it."""
        return gpt_outline(self.sizes, self.vocab_size, self.tied, dropout=0.0)

    def config(self) -> dict[str, Any]:
        """Its trainer.json."""
        given = {f"parallelism__{key}": value for key, value in self.options.items()}
        sizes = {f"model__{key}": value for key, value in self.sizes._asdict().items()}
        return configuration(
            num_ranks=self.num_ranks, parallelism__strategy=self.strategy,
            model__tied=self.tied,
            batch={"micro": self.micro, "accumulation": self.accumulation}, **given, **sizes,
        )  # fmt: skip

    def setting(self) -> Setting:
        """The same, as the planner takes it."""
        options = self.config()["parallelism"]
        group = options["shard_group"] if self.strategy == "hybrid_shard" else None
        return Setting(
            strategy=self.strategy,
            num_nodes=1,
            ranks_per_node=self.num_ranks,
            shard_group=group,
            tensor=options["tensor"],
            precision=options["precision"],
            reductions=options["reductions"],
            micro=self.micro,
            accumulation=self.accumulation,
            context=self.sizes.context,
            checkpointing=options["activation_checkpointing"],
            checkpointing_every=options["activation_checkpointing_every"],
            cpu_offload=options["cpu_offload"],
            gradient_sync=options["gradient_sync"],
            steps=CONFIG["steps"],
            ddp=Ddp(**options["ddp"]),
            fsdp=Fsdp(**options["fsdp"]),
            wrap=Wrap(**options["wrap"]),
        )
