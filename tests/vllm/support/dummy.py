"""Tiny models of the shapes that the connector must know, written as a folder that both transformers and vLLM read: real config, random
weights from a fixed seed, a tokenizer of bytes. Weights are drawn so that attention, positions, biases and norms all move the output: with
transformers' own small ones a wrong rotation would hardly be seen."""
import math
import os

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, CONFIG_MAPPING, PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = 256 + len(SPECIAL) + 61  # a multiple of 64, as vLLM pads it
CHAT = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")

COMMON = dict(vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0,
              pad_token_id=0)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 512}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 1024, "beta_fast": 32.0,
        "beta_slow": 1.0}
# 512 + 64: the only latent that vLLM's operator for the CPU is made for. YaRN, as the real ones have it: without it vLLM 0.32 turns the strided
# queries of latent attention by its CPU operator for whole heads, which is wrong (by whole units; its own forward_native is right).
DEEPSEEK_YARN = dict(YARN, mscale=0.707, mscale_all_dim=0.707)
LATENT = dict(kv_lora_rank=512, q_lora_rank=None, qk_nope_head_dim=64, qk_rope_head_dim=64, v_head_dim=64, num_key_value_heads=4,
              first_k_dense_replace=3, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=64,
              n_group=1, topk_group=1, routed_scaling_factor=1.0, rope_parameters=DEEPSEEK_YARN)

# name: (transformers' model type, settings beside COMMON)
SHAPES = {
    "llama": ("llama", dict(head_dim=32)),
    "llama3-rope": ("llama", dict(head_dim=32, rope_parameters=LLAMA3)),
    "yarn": ("llama", dict(head_dim=32, rope_parameters=YARN)),
    "qwen2": ("qwen2", dict()),                                       # biases on q, k, v
    "qwen3": ("qwen3", dict(head_dim=32)),                            # norm of q and k before RoPE
    "gemma3": ("gemma3_text", dict(head_dim=32, sliding_window=64, num_hidden_layers=4, query_pre_attn_scalar=32,
                                   layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"])),
    "stablelm": ("stablelm", dict(partial_rotary_factor=0.25, use_qkv_bias=True)),
    "glm4": ("glm4", dict(head_dim=32, partial_rotary_factor=0.5)),   # partial, and pairs side by side
    "phi": ("phi", dict(num_key_value_heads=4, partial_rotary_factor=0.5)),
    "smollm3": ("smollm3", dict(no_rope_layers=[1, 0, 1])),           # a layer without RoPE
    "deepseek2": ("deepseek_v2", dict(LATENT)),                       # latent attention
    "deepseek3": ("deepseek_v3", dict(LATENT, q_lora_rank=48)),
}


def config(shape, **more):
    kind, settings = SHAPES[shape]
    return CONFIG_MAPPING[kind](**dict(COMMON, **dict(settings, **more)))


def draw(model, seed):
    """Every parameter anew: matrices by their fan-in, queries and keys twice that, norms about what they are, biases that count."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        with torch.no_grad():
            if name.endswith("bias"):
                parameter.copy_(0.5 * noise)
            elif parameter.dim() == 1:  # a norm: Gemma's are 0 where the others' are 1
                parameter.add_(0.2 * noise)
            elif "embed" in name:
                parameter.copy_(noise)
            else:
                sharper = 2.0 if any(part in name for part in ("q_proj", "k_proj", "q_b_proj", "kv_a_proj")) else 1.0
                parameter.copy_(sharper * noise / math.sqrt(parameter.shape[-1]))


def tokenizer():
    """One token a byte, and three special ones: the text of a prompt is its bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: i + len(SPECIAL) for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    vocabulary = {t: i for i, t in enumerate(SPECIAL)}
    vocabulary.update({c: i + len(SPECIAL) for i, c in enumerate(alphabet)})
    inner.model = models.BPE(vocab=vocabulary, merges=[])
    inner.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=SPECIAL[0], eos_token=SPECIAL[0], pad_token=SPECIAL[0],
                                   additional_special_tokens=SPECIAL[1:], chat_template=CHAT)


def write(shape, folder, dtype="float32", seed=20261130, **more):
    """The model in folder/SHAPE-DTYPE-SEED, its path. more: other settings than the shape's (then give another folder)."""
    target = os.path.join(str(folder), "%s-%s-%d" % (shape, dtype, seed))
    if os.path.exists(os.path.join(target, "tokenizer.json")):
        return target
    model = AutoModelForCausalLM.from_config(config(shape, **more), dtype=torch.float32)
    draw(model, seed)
    model.to(getattr(torch, dtype)).save_pretrained(target)
    tokenizer().save_pretrained(target)
    return target
