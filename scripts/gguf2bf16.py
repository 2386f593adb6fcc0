#!/usr/bin/env python3
"""gguf2bf16.py [--f32] FILE.gguf OUT.gguf: the same model with each weight as what its quantised block stands for, rounded to bf16: the very numbers
that gguf2hf.py writes for vLLM, so that two engines can be compared on the same weights. Matrices are stored as BF16, vectors (which
libllama wants in F32) as F32 of the rounded numbers; with --f32 matrices too, whose products are then not rounded. Settings and tokenizer
are copied."""
import sys

import numpy
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

OWN = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")  # written by the writer, or no longer true


def copy_settings(reader, writer, f32):
    for name, field in reader.fields.items():
        if name.startswith(OWN):
            continue
        kind = field.types[0]
        writer.add_key_value(name, field.contents(), kind, field.types[-1] if kind == GGUFValueType.ARRAY else None)
    writer.add_file_type(LlamaFileType.ALL_F32 if f32 else LlamaFileType.MOSTLY_BF16)


def rounded(tensor):
    return quantize(numpy.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=numpy.float32), GGMLQuantizationType.BF16)


def main():
    paths = [a for a in sys.argv[1:] if a != "--f32"]
    if len(paths) != 2 or len(paths) != len(sys.argv) - ("--f32" in sys.argv) - 1:
        raise SystemExit(__doc__)
    reader = GGUFReader(paths[0])
    writer = GGUFWriter(paths[1], reader.fields["general.architecture"].contents())
    copy_settings(reader, writer, "--f32" in sys.argv)
    for tensor in reader.tensors:
        weight, kind = rounded(tensor), GGMLQuantizationType.BF16
        if len(tensor.shape) == 1 or "--f32" in sys.argv:
            weight, kind = dequantize(weight, kind), GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, weight, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
