"""Keys that the library rotates have the bits that torch and vLLM's own operator give: every pairing, type and partial rotary, latent
attention too, through the whole way of a segment: written, opened, read at its positions."""
import ctypes as c
import os
import sys

import pytest
import torch
import vllm._custom_ops  # noqa: F401  registers torch.ops._C

from support import ground

sys.path.insert(0, ground.PACKAGE)

from inferscale_vllm import library as lib  # noqa: E402

TYPES = {torch.float32: lib.F32, torch.float16: lib.F16, torch.bfloat16: lib.BF16}
N_POS, HEADS = 3000, 3
ROT_PRODUCTS = 1


@pytest.fixture(scope="module")
def library():
    return lib.load(ground.LIBRARY)


def table(rot_dim, dtype, base=100000.0):
    w = 1.0 / (base ** (torch.arange(0, rot_dim, 2).float() / rot_dim))
    angles = torch.outer(torch.arange(N_POS).float(), w)
    return w.double().contiguous(), torch.cat((angles.cos(), angles.sin()), -1).to(dtype)


class Live:
    """A live model of one layer (K and V, or a latent K alone) in a folder."""

    def __init__(self, library, folder, heads, dim, begin, rot_dim, neox, dtype, latent=False):
        self.library, self.heads, self.dim, self.dtype, self.folder = library, heads, dim, dtype, folder
        w, self.table = table(rot_dim, dtype)
        rows = self.table.float().contiguous()
        planes = (lib.Plane * 2)(
            lib.Plane(0, 0, heads, dim, begin, rot_dim, lib.PAIR_HALVES if neox else lib.PAIR_ADJACENT, 0, 0),
            lib.Plane(0, 1, heads, dim, 0, 0, lib.PAIR_NONE, lib.NO_FREQ, 0),
        )
        freqs = (lib.Freqs * 1)(
            lib.Freqs(rot_dim // 2, N_POS, 1.0, c.cast(w.data_ptr(), c.POINTER(c.c_double)), rows.data_ptr()))
        dirs = (c.c_char_p * 1)(str(folder).encode())
        desc = lib.Desc(c.sizeof(lib.Desc), 1 if latent else 2, 1, planes, freqs, (c.c_uint8 * 32)(7), 0, dirs, 1, 0)
        self.kv = c.c_void_p()
        library.check(library.dll.inferscale_kv_open(c.byref(desc), c.byref(self.kv)))
        self.n_planes = 1 if latent else 2

    def match(self, keys, rotated, pos):
        found = c.c_int()
        self.library.check(self.library.dll.inferscale_kv_match(
            self.kv, 0, TYPES[self.dtype], keys.data_ptr(), rotated.data_ptr(), keys.shape[0], self.heads, pos, c.byref(found)))
        return found.value

    def through_a_segment(self, keys, values, parts):
        """What load_read gives for pieces of a segment of these rows: parts are (begin, tokens, position)."""
        n = keys.shape[0]
        name = os.urandom(32)
        path = self.folder / name.hex()[:2] / (name.hex() + ".seg")
        path.parent.mkdir(exist_ok=True)
        planes = (c.c_void_p * 2)(keys.data_ptr(), values.data_ptr())
        self.library.check(self.library.dll.inferscale_kv_write(
            self.kv, str(path).encode(), lib.ids_array(range(n)), n, 0, 0, self.n_planes, 0, self.heads, TYPES[self.dtype], planes))
        wanted = (lib.Part * len(parts))(*(lib.Part((c.c_uint8 * 32)(*name), 0, *p) for p in parts))
        load, bad = c.c_void_p(), c.c_size_t()
        self.library.check(self.library.dll.inferscale_kv_load_open(
            self.kv, wanted, len(parts), 0, self.n_planes, 0, self.heads, c.byref(load), c.byref(bad)))
        out = [torch.empty_like(keys) for _ in range(self.n_planes)]
        for plane, to in enumerate(out):
            self.library.check(self.library.dll.inferscale_kv_load_read(
                load, plane, TYPES[self.dtype], to.data_ptr(), self.heads * self.dim, self.dim))
        self.library.dll.inferscale_kv_load_close(load)
        return out

    def close(self):
        self.library.dll.inferscale_kv_close(self.kv)


def engine_op_crashes(neox, dtype, rot_dim):
    """On CPUs with bf16 of their own vLLM's operator loads the second half of a key as if it lay on a multiple of a vector: SIGSEGV."""
    with open("/proc/cpuinfo") as f:
        return neox and dtype == torch.bfloat16 and rot_dim // 2 % 16 != 0 and "avx512_bf16" in f.read()


def engine_op(keys, positions, dim, cache, neox):
    """vLLM's operator for this CPU, which works in place."""
    out, query = keys.clone(), keys.clone()
    torch.ops._C.rotary_embedding(positions, query.view(len(keys), -1), out.view(len(keys), -1), dim, cache, neox)
    return out


def native(keys, positions, dim, cache, neox):
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
    flat = keys.reshape(len(keys), -1)
    return RotaryEmbedding.forward_static(positions, flat.clone(), flat.clone(), dim, cache.shape[1], cache, neox)[1].view(keys.shape)


def same_bits(a, b):
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("how", [engine_op, native], ids=["operator", "torch"])
@pytest.mark.parametrize("neox", [True, False], ids=["halves", "adjacent"])
@pytest.mark.parametrize("dtype", list(TYPES), ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize("dim,rot_dim", [(64, 64), (128, 128), (128, 32), (80, 40), (96, 24), (64, 34), (256, 64)])
def test_bits_are_the_engine_s(library, tmp_path, how, neox, dtype, dim, rot_dim):
    if how is engine_op and engine_op_crashes(neox, dtype, rot_dim):
        pytest.skip("vLLM's own operator ends the process on this CPU")
    torch.manual_seed(dim * 1000 + rot_dim)
    live = Live(library, tmp_path, HEADS, dim, 0, rot_dim, neox, dtype)
    try:
        sample = (torch.randn(64, HEADS, dim) * 3).to(dtype)
        live.match(sample, how(sample, torch.arange(1000, 1064), dim, live.table, neox), 1000)
        parts = ((0, 1, 0), (1, 31, 977), (32, 200, 2800))  # other keys at other positions than it was found out with
        at = torch.cat([torch.arange(pos, pos + n) for _, n, pos in parts])
        keys, values = (torch.randn(232, HEADS, dim) * 5).to(dtype), torch.randn(232, HEADS, dim).to(dtype)
        k, v = live.through_a_segment(keys, values, parts)
        assert same_bits(k, how(keys, at, dim, live.table, neox))
        assert same_bits(v, values)
    finally:
        live.close()


def test_one_arithmetic_is_not_another(library, tmp_path):
    """The control: what was found for torch's operators does not give the bits of F32."""
    torch.manual_seed(1)
    live = Live(library, tmp_path, HEADS, 64, 0, 64, True, torch.bfloat16)
    try:
        keys = torch.randn(64, HEADS, 64).bfloat16()
        rotated = native(keys, torch.arange(64), 64, live.table, True)
        exact = native(keys.float(), torch.arange(64), 64, live.table.float(), True).bfloat16()
        assert live.match(keys, rotated, 0) == ROT_PRODUCTS
        assert same_bits(live.through_a_segment(keys, keys, [(0, 64, 0)])[0], rotated) and not same_bits(rotated, exact)
        assert live.match(keys, exact, 0) == 0
        with pytest.raises(lib.LibraryError, match="not known"):
            live.match(keys, keys + 1, 0)
        assert same_bits(live.through_a_segment(keys, keys, [(0, 64, 0)])[0], exact)  # what did not match changed nothing
    finally:
        live.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_a_latent_is_rotated_in_its_last_dims(library, tmp_path, dtype):
    """Multi-head latent attention: one plane a layer, 512 dims as they are, the last 64 rotated, adjacent pairs, by torch's operators."""
    torch.manual_seed(2)
    live = Live(library, tmp_path, 1, 576, 512, 64, False, dtype, latent=True)

    def rotated(x, positions):
        return torch.cat((x[..., :512], native(x[..., 512:].contiguous(), positions, 64, live.table, False)), -1)
    try:
        sample = torch.randn(64, 1, 576).to(dtype)
        live.match(sample, rotated(sample, torch.arange(100, 164)), 100)
        keys = torch.randn(77, 1, 576).to(dtype)
        assert same_bits(live.through_a_segment(keys, keys, [(0, 77, 1234)])[0], rotated(keys, torch.arange(1234, 1311)))
    finally:
        live.close()
