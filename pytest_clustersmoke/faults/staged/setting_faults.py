"""Wrong configurations, and faults that the job's settings stage."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Any

from .staging import Staging, cannot_stage, wrap_attribute


class Configured(Staging, ABC):
    """Passes a changed configuration to DeepSpeed."""

    def opened(self) -> None:
        deepspeed: Any = importlib.import_module("deepspeed")

        def with_changed_config(initialize: Any) -> Any:
            def initialize_changed(*args: Any, **kwargs: Any) -> Any:
                config = kwargs.get("config")
                if not isinstance(config, dict):
                    raise cannot_stage("it calls deepspeed.initialize without config=dict")
                self.stage()
                return initialize(*args, **{**kwargs, "config": self.changed(config)})

            return initialize_changed

        wrap_attribute(deepspeed, "initialize", with_changed_config)

    @abstractmethod
    def changed(self, config: dict[str, Any]) -> dict[str, Any]:
        """The configuration with the mistake."""


class BatchArithmetic(Configured):
    def changed(self, config: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(config.get("train_batch_size"), int):
            raise cannot_stage("its DeepSpeed configuration has no integer train_batch_size")
        return {**config, "train_batch_size": config["train_batch_size"] + 1}


class OptimizerMissing(Configured):
    def changed(self, config: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in config.items() if key != "optimizer"}


class ByJob(Staging):
    """The job's environment or settings stage the fault; the rank only records it."""

    def introduced(self) -> None:
        self.stage()


STAGED_BY_JOB = (
    "p2p-off",
    "network-in-node",
    "infiniband-off",
    "interface-missing",
    "setup-line-fails",
    "package-missing",
    "time-limit",
    "submission-refused",
)
STAGINGS: dict[str, type[Staging]] = {
    "nothing": Staging,
    "batch-arithmetic": BatchArithmetic,
    "optimizer-missing": OptimizerMissing,
    **dict.fromkeys(STAGED_BY_JOB, ByJob),
}
