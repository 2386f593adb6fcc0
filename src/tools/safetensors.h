/* safetensors.h - a strict reader of safetensors files: u64 header length, a JSON header, then the tensors' bytes.
 *
 * Nothing in the file is believed: lengths, shapes and offsets are checked against one another and against the bytes that are
 * there. Tensors must cover the data part exactly, without holes or overlap, as the format demands. No llama.h here: the fuzz
 * target links this file without libllama. */
#ifndef IS_TOOLS_SAFETENSORS_H
#define IS_TOOLS_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { ST_MAX_DIMS = 8, ST_MAX_HEADER = 64 * 1024 * 1024, ST_MAX_TENSORS = 65536 };

/* X(NAME, bytes of one element) */
#define ST_DTYPE_MAP(X)                                                                                                        \
    X(BOOL, 1) X(U8, 1) X(I8, 1) X(F8_E5M2, 1) X(F8_E4M3, 1) X(I16, 2) X(U16, 2) X(F16, 2) X(BF16, 2) X(I32, 4) X(U32, 4)      \
    X(F32, 4) X(F64, 8) X(I64, 8) X(U64, 8)

typedef enum st_dtype {
#define ST_X(name, bytes) ST_##name,
    ST_DTYPE_MAP(ST_X)
#undef ST_X
    ST_DTYPE_COUNT
} st_dtype;

typedef struct st_tensor {
    char *name;                    /* owned by the file */
    st_dtype dtype;
    uint32_t n_dims;               /* 0 = a scalar */
    uint64_t shape[ST_MAX_DIMS];   /* outermost first */
    const uint8_t *data;           /* borrowed from the parsed bytes; not aligned */
    uint64_t n_bytes;
} st_tensor;

typedef struct st_file {
    size_t n;
    st_tensor *tensors;            /* in the order of their data */
} st_file;

/* Parses p[0..n), which must outlive *out (st_free). E_CORRUPT names what is wrong and where; E_UNSUPPORTED: an element type or
 * a number of dimensions that is not known here; E_NOMEM. */
is_status st_parse(const uint8_t *p, size_t n, st_file **out);
void st_free(st_file *f);          /* NULL is allowed */
const st_tensor *st_find(const st_file *f, const char *name); /* NULL = not there */
const char *st_dtype_name(st_dtype t);

#endif
