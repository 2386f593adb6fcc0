/* codec.h - how rows are held: f32, f16 or bf16. Conversion rounds to nearest even; SIMD with a scalar oracle. */
#ifndef IS_KV_CODEC_H
#define IS_KV_CODEC_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum is_codec { IS_CODEC_F32 = 0, IS_CODEC_F16 = 1, IS_CODEC_BF16 = 2 } is_codec; /* values stand in files */
enum { IS_CODECS = 3 };

size_t is_codec_bytes(is_codec c);                   /* per element: 4, 2, 2 */
const char *is_codec_name(is_codec c);               /* "f32" ... */
is_status is_codec_parse(const char *name, is_codec *out);
void is_codec_encode(is_codec c, const float *src, void *dst, size_t n);
void is_codec_decode(is_codec c, const void *src, float *dst, size_t n);
uint16_t is_f16_from_f32(float x);                   /* scalar oracles */
float is_f32_from_f16(uint16_t h);
uint16_t is_bf16_from_f32(float x);
float is_f32_from_bf16(uint16_t h);

#endif
