"""The metrics of a phase: their names, units and meanings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MetricKind:
    """How a metric is written: its unit, and whether more of it is better."""

    unit: str
    higher_is_better: bool
    meaning: str


METRICS: dict[str, MetricKind] = {
    "steps_per_s": MetricKind("steps/s", True, "all steps over their wall time"),
    "steady_steps_per_s": MetricKind("steps/s", True, "steps after warm-up over their wall time"),
    "samples_per_s": MetricKind("samples/s", True, "steps_per_s x the global batch"),
    "tokens_per_s_per_rank": MetricKind(
        "tokens/s", True, "steps x micro batch x sequence length over wall time, padding included"
    ),
    "peak_memory_gib": MetricKind("GiB", False, "peak memory allocated on a device (RSS on CPU)"),
    "peak_memory_reserved_gib": MetricKind("GiB", False, "peak memory the allocator reserved"),
    "final_loss": MetricKind("1", False, "mean loss over all ranks at the last step"),
    "step_time_p50_s": MetricKind("s", False, "median step time, slowest rank"),
    "step_time_p95_s": MetricKind("s", False, "95th percentile of step time, slowest rank"),
    # Bandwidths by nccl-tests' definitions, in 1e9 bytes a second, times those of the slowest rank.
    "busbw_gb_per_s": MetricKind(
        "GB/s", True, "bus bandwidth of all-reduce, the best of all sizes"
    ),
    "busbw_1mib_gb_per_s": MetricKind("GB/s", True, "bus bandwidth of all-reduce at 1 MiB"),
    "busbw_64mib_gb_per_s": MetricKind("GB/s", True, "bus bandwidth of all-reduce at 64 MiB"),
    "busbw_1gib_gb_per_s": MetricKind("GB/s", True, "bus bandwidth of all-reduce at 1 GiB"),
    "all_gather_busbw_gb_per_s": MetricKind(
        "GB/s", True, "bus bandwidth of all-gather, the best of all sizes"
    ),
    "reduce_scatter_busbw_gb_per_s": MetricKind(
        "GB/s", True, "bus bandwidth of reduce-scatter, the best of all sizes"
    ),
    "all_to_all_busbw_gb_per_s": MetricKind(
        "GB/s", True, "bus bandwidth of all-to-all, the best of all sizes"
    ),
    "latency_us": MetricKind("us", False, "time of an all-reduce of 8 bytes, slowest rank"),
    "pair_bandwidth_min_gb_per_s": MetricKind(
        "GB/s", True, "send and receive at once between two nodes, each way: the slowest pair"
    ),
}
