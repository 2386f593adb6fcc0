"""What a composed prompt must give, computed by transformers in float32 from the same weights, and by the textbook: no code of ours is in it.

A composed prompt is pieces at ascending positions. A piece's keys and values are those it had when it was encoded behind a context of its own,
at positions of its own; its keys are turned from those positions to where it stands by the rotation's definition, in float64. Whatever comes
behind the stored pieces is computed on them. The model is used as a black box but for its rotary embedding's frequencies."""
from dataclasses import dataclass, field

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache


@dataclass
class Piece:
    """tokens: what is kept. context: what was before it when it was encoded. begin: where that context began. at: the position of the first
    token now; None = right behind the piece before it."""
    tokens: list
    context: list = field(default_factory=list)
    begin: int = 0
    at: int = None


class Reference:
    def __init__(self, folder, attention="eager"):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()
        self.config = self.model.config
        self.kinds = getattr(self.config, "layer_types", None) or ["full_attention"] * self.config.num_hidden_layers
        self.rotary = self.model.model.rotary_emb

    # ---- plain ------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def plain(self, tokens):
        """[tokens][vocabulary] log-probabilities, one forward pass."""
        return torch.log_softmax(self.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].double(), -1).numpy()

    # ---- composed ---------------------------------------------------------------------------------------------------------

    def composed(self, pieces, question):
        """[question][vocabulary]: the question computed on the pieces' rows. Pieces must follow one another without a gap."""
        rows, at = [], 0
        for piece in pieces:
            at = at if piece.at is None else piece.at
            rows.append(self.moved(piece, at))
            at += len(piece.tokens)
        cache = DynamicCache()  # without the config: a sliding layer keeps all its rows, and the mask hides those outside the window
        for layer in range(self.config.num_hidden_layers):
            cache.update(torch.cat([r[layer][0] for r in rows], 2), torch.cat([r[layer][1] for r in rows], 2), layer)
        return self.on(cache, question, at)

    @torch.no_grad()
    def on(self, cache, tokens, at):
        positions = torch.arange(at, at + len(tokens))[None]
        masks = {kind: self.mask(kind, cache.get_seq_length(), len(tokens)) for kind in set(self.kinds)}
        mask = masks if len(masks) > 1 or "sliding_attention" in masks else next(iter(masks.values()))
        out = self.model(input_ids=torch.tensor([tokens]), position_ids=positions, past_key_values=cache, attention_mask=mask, use_cache=True)
        return torch.log_softmax(out.logits[0].double(), -1).numpy()

    def mask(self, kind, past, new):
        """[1][1][new][past + new], added to scores: causal, and within the window in sliding layers."""
        behind = torch.arange(past, past + new)[:, None] - torch.arange(past + new)[None]
        seen = behind >= 0
        if kind == "sliding_attention":
            seen &= behind < self.config.sliding_window
        return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]

    def moved(self, piece, at):
        """Per layer what is cached of the piece's own tokens, turned to positions at, at + 1, ..."""
        cache, n = DynamicCache(), len(piece.context)
        self.on(cache, piece.context + piece.tokens, piece.begin)
        by = at - (piece.begin + n)
        return [self.turned(layer.keys[:, :, n:], layer.values[:, :, n:], by, i) for i, layer in enumerate(cache.layers)]

    def turned(self, keys, values, by, layer):
        return self.turn(keys, by, layer), values.clone()

    # ---- the rotation -------------------------------------------------------------------------------------------------------

    def frequencies(self, layer):
        """Radians per position of each rotated pair, float64, and whether this layer rotates at all."""
        no_rope = getattr(self.config, "no_rope_layers", None)
        if no_rope and not no_rope[layer]:
            return None
        per_kind = getattr(self.rotary, self.kinds[layer] + "_inv_freq", None)
        return (self.rotary.inv_freq if per_kind is None else per_kind).double()

    def turn(self, keys, by, layer):
        """Keys turned on by so many positions: x -> x cos(w by) - y sin(w by), y -> y cos(w by) + x sin(w by). A factor on cosines and sines
        (YaRN) is in the keys already and stays."""
        w = self.frequencies(layer)
        if w is None or by == 0:
            return keys.clone()
        out, n = keys.double().clone(), len(w)
        if self.side_by_side():
            x, y = slice(0, 2 * n, 2), slice(1, 2 * n, 2)
        else:
            x, y = slice(0, n), slice(n, 2 * n)
        cos, sin = torch.cos(w * by), torch.sin(w * by)
        out[..., x], out[..., y] = (keys[..., x].double() * cos - keys[..., y].double() * sin,
                                    keys[..., y].double() * cos + keys[..., x].double() * sin)
        return out.float()

    def side_by_side(self):
        return self.config.model_type in ("glm", "glm4")


class LatentReference(Reference):
    """Latent attention: transformers caches the latent in place of keys, and the one rotated key of all heads in place of values."""

    def turned(self, keys, values, by, layer):
        return keys.clone(), self.turn(values, by, layer)

    def side_by_side(self):
        return self.config.model_type == "deepseek_v2"  # deepseek_v3 sorts the pairs into halves before it caches them


def reference(folder):
    """Of the model in a folder."""
    latent = AutoConfig.from_pretrained(folder).model_type.startswith("deepseek")
    return (LatentReference if latent else Reference)(folder)
