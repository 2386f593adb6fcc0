#!/usr/bin/env python3
"""gguf2hf.py FILE.gguf FOLDER: a GGUF model of the llama architecture as the folder that transformers and vLLM read: bf16 safetensors,
config.json, tokenizer and chat template. Quantised weights are what their blocks stand for, rounded to bf16; no name is guessed: a tensor or
a setting that is not known here is an error, not left out."""
import json
import os
import sys

import numpy
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from transformers import AutoTokenizer

WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
IN_LAYER = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
            "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
            "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
SCALING = "rope.scaling."  # a model with any of these needs more than rope_theta


class Model:
    """The file's settings, by their names without the architecture's."""

    def __init__(self, path):
        self.reader = GGUFReader(path)
        self.arch = self.whole("general.architecture")
        if self.arch != "llama":
            raise SystemExit("%s is of the architecture '%s'; this converts 'llama' only" % (path, self.arch))
        scaled = [k for k in self.reader.fields if k.startswith(self.arch + "." + SCALING)]
        if scaled:
            raise SystemExit("%s scales its rope (%s), which is not converted" % (path, ", ".join(scaled)))

    def whole(self, name, default=None):
        field = self.reader.fields.get(name)
        if field is None and default is None:
            raise SystemExit("the file does not say '%s'" % name)
        return default if field is None else field.contents()

    def __getitem__(self, name):
        return self.whole("%s.%s" % (self.arch, name))

    def get(self, name, default):
        return self.whole("%s.%s" % (self.arch, name), default)


def halves(weight, heads):
    """Rows of a head as transformers has them: rotated pairs half a head apart. GGUF's llama has them side by side."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def named(model, name):
    """The tensor's name in transformers, and the heads to reorder by (0: as it is)."""
    if name in WHOLE:
        return WHOLE[name], 0
    block, layer, part, kind = name.split(".")
    if block != "blk" or part not in IN_LAYER or kind != "weight":
        raise SystemExit("the tensor '%s' is not known here" % name)
    heads = {"attn_q": model["attention.head_count"], "attn_k": model["attention.head_count_kv"]}.get(part, 0)
    return "model.layers.%s.%s.weight" % (layer, IN_LAYER[part]), heads


def weights(model):
    tensors = {}
    for tensor in model.reader.tensors:
        weight = torch.from_numpy(numpy.array(dequantize(tensor.data, tensor.tensor_type), dtype=numpy.float32))
        name, heads = named(model, tensor.name)
        tensors[name] = (halves(weight, heads) if heads else weight).to(torch.bfloat16).contiguous()
    return tensors


def config(model, tensors):
    heads, width = model["attention.head_count"], model["embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_act": "silu",
        "vocab_size": tensors["model.embed_tokens.weight"].shape[0], "max_position_embeddings": model["context_length"],
        "hidden_size": width, "intermediate_size": model["feed_forward_length"], "num_hidden_layers": model["block_count"],
        "num_attention_heads": heads, "num_key_value_heads": model["attention.head_count_kv"], "head_dim": width // heads,
        "rms_norm_eps": round(model["attention.layer_norm_rms_epsilon"], 9), "rope_theta": model.get("rope.freq_base", 10000.0),
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": "lm_head.weight" not in tensors,
        "bos_token_id": model.whole("tokenizer.ggml.bos_token_id"), "eos_token_id": model.whole("tokenizer.ggml.eos_token_id"),
    }


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    source, target = sys.argv[1:]
    os.makedirs(target, exist_ok=True)
    model = Model(source)
    tensors = weights(model)
    save_file(tensors, os.path.join(target, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(target, "config.json"), "w", encoding="utf-8") as out:
        json.dump(config(model, tensors), out, indent=1)
    tokenizer = AutoTokenizer.from_pretrained(os.path.dirname(os.path.abspath(source)), gguf_file=os.path.basename(source))
    if not tokenizer.chat_template:
        raise SystemExit("the file has no chat template")
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main()
