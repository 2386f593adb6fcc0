"""What the connector counts, in vLLM's own statistics and on its /metrics page as inferscale_*."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

LOAD_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
COUNTS = ("tokens_injected", "captures", "tokens_captured", "blocks_evicted", "segments_fetched", "bytes_fetched")


@dataclass
class InferScaleStats(KVConnectorStats):
    """Counts since they were last taken. `data` is plain, since it crosses processes."""

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data = {**dict.fromkeys(COUNTS, 0), "load_seconds": [], "failures": {}, "tickets": {}}

    def loaded(self, tokens: int, seconds: float) -> None:
        self.data["tokens_injected"] += tokens
        self.data["load_seconds"].append(seconds)

    def captured(self, tokens: int) -> None:
        self.data["captures"] += 1
        self.data["tokens_captured"] += tokens

    def evicted(self, blocks: int) -> None:
        self.data["blocks_evicted"] += blocks

    def failed(self, reason: str) -> None:
        self.data["failures"][reason] = self.data["failures"].get(reason, 0) + 1

    def ticket(self, op: str) -> None:
        self.data["tickets"][op] = self.data["tickets"].get(op, 0) + 1

    def aggregate(self, other: KVConnectorStats) -> InferScaleStats:
        for name in COUNTS:
            self.data[name] += other.data[name]
        self.data["load_seconds"] += other.data["load_seconds"]
        for kind in ("failures", "tickets"):
            for name, n in other.data[kind].items():
                self.data[kind][name] = self.data[kind].get(name, 0) + n
        return self

    def reduce(self) -> dict[str, int | float]:
        seconds = self.data["load_seconds"]
        out: dict[str, int | float] = {name: self.data[name] for name in COUNTS}
        out["loads"] = len(seconds)
        out["load_ms_mean"] = round(1000 * sum(seconds) / len(seconds), 3) if seconds else 0.0
        out.update({f"failed_{reason}": n for reason, n in self.data["failures"].items()})
        return out

    def is_empty(self) -> bool:
        return not any(self.data.values())


class InferScalePrometheus(KVConnectorPromMetrics):
    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        helps = {
            "tokens_injected": "Tokens whose stored rows were written into the cache, of each worker.",
            "captures": "Spans captured, of each worker.", "tokens_captured": "Tokens captured, of each worker.",
            "blocks_evicted": "Blocks taken out of the prefix cache because a memory was changed.",
            "segments_fetched": "Segments fetched from a gateway on another host.", "bytes_fetched": "Bytes of these.",
        }
        self.counters = {n: self._counter_cls(f"inferscale_{n}", helps[n], labelnames=labelnames) for n in COUNTS}
        self.seconds = self._histogram_cls(
            "inferscale_load_seconds", "Time to read, rotate and write one request's stored rows.", buckets=LOAD_BUCKETS,
            labelnames=labelnames,
        )
        self.failures = self._counter_cls(
            "inferscale_failures", "Requests or segments that were computed exactly instead, by reason.",
            labelnames=[*labelnames, "reason"],
        )
        self.tickets = self._counter_cls("inferscale_tickets", "Valid tickets, by operation.", labelnames=[*labelnames, "op"])

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels, data = self.per_engine_labelvalues[engine_idx], transfer_stats_data
        for name, counter in self.counters.items():
            counter.labels(*labels).inc(data[name])
        for seconds in data["load_seconds"]:
            self.seconds.labels(*labels).observe(seconds)
        for reason, n in data["failures"].items():
            self.failures.labels(*labels, reason).inc(n)
        for op, n in data["tickets"].items():
            self.tickets.labels(*labels, op).inc(n)


__all__ = ["Counter", "Gauge", "Histogram", "InferScalePrometheus", "InferScaleStats"]
