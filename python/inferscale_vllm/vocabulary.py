"""What each token id stands for, in bytes: the gateway tokenises with it, in C.

Two families are known by their decoders: byte-level BPE (GPT-2's alphabet, one letter for each byte) and sentencepiece forms (a
mark for the space, <0xAB> for a byte). Whatever else a tokenizer is, is refused rather than guessed at."""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import ModelConfig

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_MARK = "\u2581"


def read_vocabulary(model: ModelConfig) -> dict[str, Any]:
    from vllm.tokenizers import get_tokenizer

    tokenizer = get_tokenizer(
        model.tokenizer, tokenizer_mode=model.tokenizer_mode, trust_remote_code=model.trust_remote_code,
        revision=model.tokenizer_revision,
    )
    n_vocab = model.get_vocab_size()
    added = {int(i): str(t) for i, t in getattr(tokenizer, "added_tokens_decoder", {}).items()}
    control = set(tokenizer.all_special_ids)
    pieces = _pieces(tokenizer, n_vocab, added, control)
    bos = tokenizer.bos_token_id
    return {
        "n_vocab": n_vocab, "bos": -1 if bos is None else int(bos),
        "adds_bos": bos is not None and list(tokenizer("a").input_ids)[:1] == [bos],
        "eos": _ends(model, tokenizer), "special": [[i, text] for i, text in sorted(added.items())],
        "pieces": base64.b64encode(zlib.compress(pack(pieces))).decode(),
    }


def pack(pieces: list[bytes]) -> bytes:
    """For each id: u16 length, little-endian, and the bytes it stands for."""
    out = bytearray()
    for piece in pieces:
        if len(piece) > 0xFFFF:
            raise ValueError(f"a token of {len(piece)} bytes")
        out += len(piece).to_bytes(2, "little") + piece
    return bytes(out)


def _ends(model: ModelConfig, tokenizer: Any) -> list[int]:
    """Ids that end an answer: the tokenizer's, the model's and those of generation_config."""
    ends: set[int] = set()
    generation = model.try_get_generation_config() or {}
    for value in (tokenizer.eos_token_id, getattr(model.hf_config, "eos_token_id", None), generation.get("eos_token_id")):
        ends |= set(value) if isinstance(value, list) else {value} if value is not None else set()
    return sorted(int(i) for i in ends)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others for letters from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + n): b for n, b in enumerate(rest)}


def _pieces(tokenizer: Any, n_vocab: int, added: dict[int, str], control: set[int]) -> list[bytes]:
    kind, alphabet = _kind(tokenizer), _byte_alphabet()
    texts: list[str | None] = [None] * n_vocab
    for text, i in tokenizer.get_vocab().items():
        if 0 <= i < n_vocab:
            texts[i] = text
    out = []
    for i, text in enumerate(texts):
        if text is None or i in control:  # an id without a token, or one that stands for no text
            out.append(b"")
        elif i in added:
            out.append(added[i].encode())
        elif kind == "bytes":
            # a letter outside the alphabet is a token that was added without saying so: its own text
            out.append(bytes(alphabet[ch] for ch in text) if all(ch in alphabet for ch in text) else text.encode())
        else:
            byte = BYTE_TOKEN.fullmatch(text)
            out.append(bytes([int(byte[1], 16)]) if byte else text.replace(SPACE_MARK, " ").encode())
    return out


def _kind(tokenizer: Any) -> str:
    """ "bytes" or "pieces", by the tokenizer's own decoder."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        decoder = json.dumps(json.loads(backend.to_str()).get("decoder"))
        if "ByteLevel" in decoder:
            return "bytes"
        if "ByteFallback" in decoder or SPACE_MARK in decoder or "Metaspace" in decoder:
            return "pieces"
        raise ValueError(f"decoder {decoder[:80]} is neither byte-level nor sentencepiece")
    if hasattr(tokenizer, "sp_model"):
        return "pieces"
    raise ValueError(f"{type(tokenizer).__name__} is neither byte-level nor sentencepiece")
