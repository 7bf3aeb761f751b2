"""Configurations that are wrong, and what the job's own settings stage."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Any

from .staging import Staging, cannot, replace


class Configured(Staging, ABC):
    """DeepSpeed is given a configuration that was changed."""

    def opened(self) -> None:
        deepspeed: Any = importlib.import_module("deepspeed")

        def wrong(initialize: Any) -> Any:
            def initialized(*given: Any, **named: Any) -> Any:
                config = named.get("config")
                if not isinstance(config, dict):
                    raise cannot("it calls deepspeed.initialize without config=dict")
                self.stage()
                return initialize(*given, **{**named, "config": self.changed(config)})

            return initialized

        replace(deepspeed, "initialize", wrong)

    @abstractmethod
    def changed(self, config: dict[str, Any]) -> dict[str, Any]:
        """The configuration with the mistake in it."""


class BatchArithmetic(Configured):
    def changed(self, config: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(config.get("train_batch_size"), int):
            raise cannot("its DeepSpeed configuration has no integer train_batch_size")
        return {**config, "train_batch_size": config["train_batch_size"] + 1}


class OptimizerMissing(Configured):
    def changed(self, config: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in config.items() if key != "optimizer"}


class ByJob(Staging):
    """The job's environment or settings stage it; the rank only marks that it is so."""

    def introduced(self) -> None:
        self.stage()


JOBS = (
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
    **dict.fromkeys(JOBS, ByJob),
}
