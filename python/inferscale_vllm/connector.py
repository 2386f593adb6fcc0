"""InferScaleConnector: what vLLM loads. One instance in the scheduler, one in each worker; this class only passes calls on.

Hybrid memory allocator (several KV cache groups): not supported, on purpose. A failed load is reported by block id, and block ids are
unique within one group only. vLLM therefore runs models with sliding windows with one group, in which all rows are kept.

Arguments that this version does not know are accepted (**kwargs): the two generations of runners pass unlike ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm import __version__ as vllm_version
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from . import settings as settings_file
from . import versions
from .metrics import InferScalePrometheus, InferScaleStats
from .orders import StepOrders
from .scheduler import SchedulerSide
from .worker import WorkerSide

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata, KVConnectorMetadata
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class InferScaleConnector(KVConnectorBase_V1):
    _cache_hit_source = CacheHitSource.DISK

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig, **kwargs: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config, **kwargs)
        settings = settings_file.read(vllm_config.kv_transfer_config.kv_connector_extra_config)
        versions.check(vllm_version, settings.allow_untested)
        self.scheduler_side: SchedulerSide | None = None
        self.worker_side: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            self.scheduler_side = SchedulerSide(vllm_config, kv_cache_config, settings)
        else:
            from vllm.distributed.parallel_state import get_pp_group, get_tp_group

            self.worker_side = WorkerSide(vllm_config, settings, get_pp_group().rank_in_group, get_tp_group().rank_in_group)

    # ---- worker ----------------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        if self.worker_side is not None:
            self.worker_side.look()

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return self.worker_side.report() if self.worker_side is not None else None

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        if self.worker_side is not None and isinstance(connector_metadata, StepOrders):
            self.worker_side.begin(connector_metadata)

    def clear_connector_metadata(self) -> None:
        super().clear_connector_metadata()
        if self.worker_side is not None:
            self.worker_side.end()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self.worker_side is not None:
            self.worker_side.start_load()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Everything is loaded before the forward."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Rows are taken where they are computed, not out of the cache."""

    def wait_for_save(self) -> None:
        if self.worker_side is not None:
            self.worker_side.finish()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, self.worker_side.take_loaded() if self.worker_side is not None else None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self.worker_side.take_bad_blocks() if self.worker_side is not None else set()

    def build_connector_worker_meta(self) -> Any:
        return self.worker_side.take_result() if self.worker_side is not None else None

    def shutdown(self) -> None:
        if self.worker_side is not None:
            self.worker_side.close()

    # ---- scheduler -------------------------------------------------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        """Nothing is handed on when a request is preempted: it computes or loads its rows again."""
        return False

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        if self.scheduler_side is not None:
            self.scheduler_side.set_reports([metadata[key] for key in sorted(metadata)])

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        self.set_xfer_handshake_metadata_pp_aware({(0, rank): report for rank, report in metadata.items()})

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        if self.scheduler_side is not None:
            self.scheduler_side.book.bind(kv_cache_manager)

    def on_new_request(self, request: Request) -> None:
        if self.scheduler_side is not None:
            self.scheduler_side.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int, **kwargs: Any) -> tuple[int | None, bool]:
        side = self.scheduler_side
        n = side.matched(request, num_computed_tokens) if side is not None else 0
        return n, n is not None and n > 0 and side is not None and side.ahead

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int, **kwargs: Any) -> None:
        if self.scheduler_side is not None:
            self.scheduler_side.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepOrders:
        assert self.scheduler_side is not None and self._kv_cache_manager is not None
        return self.scheduler_side.orders(scheduler_output, self._kv_cache_manager.get_block_ids)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        if self.scheduler_side is not None:
            self.scheduler_side.step_done(connector_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return False, self.scheduler_side.finished(request) if self.scheduler_side is not None else None

    # ---- statistics ------------------------------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        side = self.scheduler_side if self.scheduler_side is not None else self.worker_side
        return side.take_stats() if side is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        return InferScaleStats(data=data) if data else InferScaleStats()

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: VllmConfig, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> InferScalePrometheus:
        return InferScalePrometheus(vllm_config, metric_types, labelnames, per_engine_labelvalues)
