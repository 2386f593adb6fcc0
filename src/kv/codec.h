/* codec.h - how rows are held. A row is one head of one token: head_dim values.
 *
 * f32, f16 and bf16 hold the values one after another. int8 holds the row's scale (f16) and then one signed byte a value:
 * value = byte * scale, exact in f32. The scale is the row's largest magnitude / 127, rounded up, so no byte is cut off.
 * int4 holds codes of 4 bits, with a scale and an offset for 32 values (int4.h).
 * Conversion rounds to nearest even; SIMD with a scalar oracle. */
#ifndef IS_KV_CODEC_H
#define IS_KV_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* The values stand in files. The first three are also the types of an engine's cache. */
typedef enum is_codec { IS_CODEC_F32 = 0, IS_CODEC_F16 = 1, IS_CODEC_BF16 = 2, IS_CODEC_INT8 = 3,
               IS_CODEC_INT4 = 4 } is_codec;
enum { IS_CODECS = 5, IS_CACHE_TYPES = 3, IS_INT8_SCALE_BYTES = 2 };

static inline bool is_codec_known(is_codec c) { return (unsigned)c < IS_CODECS; }
/* Its rows are plain arrays: an engine's cache can have this type. */
static inline bool is_codec_plain(is_codec c) { return (unsigned)c < IS_CACHE_TYPES; }
/* Rows that are held in c come back as an engine whose cache has that type would hold them. */
static inline bool is_codec_keeps(is_codec c, is_codec cache) { return c == IS_CODEC_F32 || c == cache; }
size_t is_codec_bytes(is_codec c);                   /* per value of a plain codec: 4, 2, 2 */
size_t is_codec_row_bytes(is_codec c, size_t n);     /* of a row of n values */
const char *is_codec_name(is_codec c);               /* "f32" ... */
is_status is_codec_parse(const char *name, is_codec *out);
/* One row of n values (of a plain codec also several). int8 and int4 hold finite values below
 * IS_INT8_LARGEST and IS_INT4_LARGEST. */
void is_codec_encode(is_codec c, const float *src, void *dst, size_t n);
void is_codec_decode(is_codec c, const void *src, float *dst, size_t n);
#define IS_INT8_LARGEST (127.0f * 65504.0f)
#define IS_INT4_LARGEST (7.5f * 65504.0f)
uint16_t is_f16_from_f32(float x);                   /* scalar oracles */
float is_f32_from_f16(uint16_t h);
uint16_t is_f16_not_below(float x);                  /* of finite ones; x >= 0 */
uint16_t is_bf16_from_f32(float x);
float is_f32_from_bf16(uint16_t h);

#endif
