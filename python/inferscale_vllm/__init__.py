"""InferScale inside vLLM: the KV connector that injects remembered facts into the paged cache and captures new ones.

vLLM loads `InferScaleConnector` of `inferscale_vllm.connector`; `inferscale-vllm serve MODEL` starts a server that does.
The contract with the gateway is docs/vllm.md; everything that is arithmetic is in libinferscale (C)."""

__version__ = "0.1.0"
