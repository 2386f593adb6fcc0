/* kv_make.h - geometries, rows and segments for tests of the kv room, from running seeds. */
#ifndef TESTS_SUPPORT_KV_MAKE_H
#define TESTS_SUPPORT_KV_MAKE_H

#include "kv/segment.h"

uint64_t kv_next(uint64_t *seed);                      /* splitmix64 */
uint32_t kv_below(uint64_t *seed, uint32_t n);
float kv_float(uint64_t *seed);                        /* roughly normal, sigma 1, now and then 30 times as large */
uint64_t kv_seed(void); /* scratch_seed */

/* Layers of K and V, all K planes with this rotation (rot_dim 0 = none). Asserts that the geometry checks. */
is_geometry *kv_geometry(uint32_t n_layers, uint32_t n_heads, uint32_t head_dim, int pairing, uint32_t rot_begin,
                         uint32_t rot_dim, double base, double mscale);
is_geometry *kv_smollm2(void);                         /* 30 layers, 3 x 64, halves, base 100,000 */
is_geometry *kv_random_geometry(uint64_t *seed);       /* small, of every sort */

/* rows[plane] = [n_tokens][n_heads][head_dim], random; freed with kv_rows_free. */
float **kv_rows(const is_geometry *g, uint32_t n_tokens, uint64_t *seed);
void kv_rows_free(const is_geometry *g, float **rows);
/* A segment of random rows and tokens; its name is 32 times `name`. */
is_segment *kv_segment(const is_geometry *g, is_codec codec, uint32_t n_tokens, uint8_t name, uint64_t *seed);

#endif
