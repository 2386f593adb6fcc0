/* int4_rows.h - the kernels of rows in int4: a few rows are decoded to a stage in the first-level
 * cache, and the F32 loops of k rotate or convert them from there. Arguments: kernels.h. */
#ifndef IS_KV_INT4_ROWS_H
#define IS_KV_INT4_ROWS_H

#include "kv/kernels.h"

void is_int4_convert(const is_kernels *k, const void *row, size_t dim, size_t at, is_codec to,
                     void *dst, size_t n);
/* Values [at, at + n) of rows of dim values. */
void is_int4_convert_rows(const is_kernels *k, is_codec to, const is_rows *r, size_t dim, size_t at,
                          size_t n);
void is_int4_rotate(const is_kernels *k, const is_rotate *r);

#endif
