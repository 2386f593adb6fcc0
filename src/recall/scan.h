/* scan.h - exact dot products of int8 vectors: the scalar oracle, AVX2, AVX-512 and AVX-512 VNNI, chosen at run time. */
#ifndef IS_RECALL_SCAN_H
#define IS_RECALL_SCAN_H

#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"

/* out[i] = sum over d of q[d] * rows[i * stride + d]; dim <= 65,536; exact in int32. stride in bytes, >= dim. */
void is_scan_dot(const int8_t *q, const int8_t *rows, size_t stride, uint32_t dim, size_t n, int32_t *out);
void is_scan_dot_level(is_simd level, const int8_t *q, const int8_t *rows, size_t stride, uint32_t dim, size_t n, int32_t *out);

#endif
