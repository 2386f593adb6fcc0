/* gguf_check.c - is this file fit to be shown to libllama?
 *
 * A GGUF file is: magic, u32 version, i64 tensors, i64 keys; the keys with typed values; the tensor table (name, dimensions,
 * type, offset); padding; the tensors. libllama is written for good files: a truncated one is read past its end (mapped memory:
 * SIGBUS) long after loading, so the whole header is walked here first and every tensor must lie inside the file. */
#include "engine/llama/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"

typedef struct is_cursor {
    const uint8_t *p;
    uint64_t at, n;
    bool bad;
} is_cursor;

static const uint8_t *take(is_cursor *r, uint64_t n)
{
    const uint8_t *p = r->p + r->at;

    if (r->bad || n > r->n - r->at) {
        r->bad = true;
        return NULL;
    }
    r->at += n;
    return p;
}

static uint32_t take_u32(is_cursor *r)
{
    const uint8_t *p = take(r, 4);

    return p ? is_get_u32(p) : 0;
}

static uint64_t take_u64(is_cursor *r)
{
    const uint8_t *p = take(r, 8);

    return p ? is_get_u64(p) : 0;
}

static const char *take_str(is_cursor *r, uint64_t *len)
{
    *len = take_u64(r);
    return (const char *)take(r, *len);
}

static uint64_t scalar_bytes(uint32_t type)
{
    switch (type) {
    case GGUF_TYPE_UINT8: case GGUF_TYPE_INT8: case GGUF_TYPE_BOOL: return 1;
    case GGUF_TYPE_UINT16: case GGUF_TYPE_INT16: return 2;
    case GGUF_TYPE_UINT32: case GGUF_TYPE_INT32: case GGUF_TYPE_FLOAT32: return 4;
    case GGUF_TYPE_UINT64: case GGUF_TYPE_INT64: case GGUF_TYPE_FLOAT64: return 8;
    default: return 0;
    }
}

static void skip_value(is_cursor *r, uint32_t type)
{
    uint64_t len, n;

    if (type == GGUF_TYPE_STRING) {
        take_str(r, &len);
    } else if (type == GGUF_TYPE_ARRAY) {
        uint32_t of = take_u32(r);

        n = take_u64(r);
        if (of == GGUF_TYPE_STRING) {
            for (uint64_t i = 0; i < n && !r->bad; i++) take_str(r, &len);
        } else if (scalar_bytes(of) == 0 || n > r->n / scalar_bytes(of)) {
            r->bad = true;
        } else {
            take(r, n * scalar_bytes(of));
        }
    } else if (scalar_bytes(type)) {
        take(r, scalar_bytes(type));
    } else {
        r->bad = true;
    }
}

/* Reads the keys; remembers the alignment and the architecture. */
static void read_keys(is_cursor *r, uint64_t n_keys, uint64_t *align, is_gguf_facts *out)
{
    for (uint64_t i = 0; i < n_keys && !r->bad; i++) {
        uint64_t len, value_len;
        const char *key = take_str(r, &len), *value;
        uint32_t type = take_u32(r);

        if (r->bad) return;
        if (len == 17 && memcmp(key, "general.alignment", 17) == 0) {
            *align = type == GGUF_TYPE_UINT32 ? take_u32(r) : 0;
            if (*align == 0 || *align > 1 << 20 || (*align & (*align - 1))) r->bad = true;
        } else if (len == 20 && memcmp(key, "general.architecture", 20) == 0 && type == GGUF_TYPE_STRING) {
            value = take_str(r, &value_len);
            if (!r->bad) snprintf(out->arch, sizeof out->arch, "%.*s", (int)(value_len < 31 ? value_len : 31), value);
        } else {
            skip_value(r, type);
        }
    }
}

/* Bytes of a tensor, or 0 if its shape or type is impossible. */
static uint64_t tensor_bytes(const uint64_t *ne, uint32_t n_dims, uint32_t type)
{
    unsigned __int128 n = 1;

    if (type >= GGML_TYPE_COUNT || ggml_blck_size((enum ggml_type)type) == 0) return 0;
    for (uint32_t i = 0; i < n_dims; i++) {
        if (ne[i] == 0 || ne[i] > INT64_MAX) return 0;
        n *= ne[i];
        if (n > INT64_MAX) return 0;
    }
    if (n_dims == 0 || ne[0] % (uint64_t)ggml_blck_size((enum ggml_type)type)) return 0;
    n = n / (uint64_t)ggml_blck_size((enum ggml_type)type) * ggml_type_size((enum ggml_type)type);
    return n > INT64_MAX ? 0 : (uint64_t)n;
}

/* Walks the tensor table; *need = bytes the data section must have. */
static void read_tensors(is_cursor *r, uint64_t n_tensors, uint64_t align, uint64_t *need, uint64_t by_type[GGML_TYPE_COUNT])
{
    for (uint64_t i = 0; i < n_tensors && !r->bad; i++) {
        uint64_t len, offset, bytes, ne[GGML_MAX_DIMS] = { 0 };
        uint32_t n_dims, type;

        take_str(r, &len);
        if (len >= GGML_MAX_NAME) r->bad = true;
        n_dims = take_u32(r);
        if (n_dims > GGML_MAX_DIMS) r->bad = true;
        for (uint32_t d = 0; d < n_dims && !r->bad; d++) ne[d] = take_u64(r);
        type = take_u32(r);
        offset = take_u64(r);
        if (r->bad) return;
        bytes = tensor_bytes(ne, n_dims, type);
        if (bytes == 0 || offset % align || offset > INT64_MAX - bytes) {
            r->bad = true;
            return;
        }
        if (offset + bytes > *need) *need = offset + bytes;
        by_type[type] += bytes;
    }
}

static is_status check_bytes(const char *path, const uint8_t *p, uint64_t n, is_gguf_facts *out)
{
    is_cursor r = { p, 0, n, false };
    uint64_t align = 32, need = 0, n_tensors, n_keys, data, by_type[GGML_TYPE_COUNT] = { 0 };
    uint32_t version, best = 0;
    const uint8_t *magic = take(&r, 4);

    if (!magic || memcmp(magic, "GGUF", 4) != 0)
        return is_fail(INFERSCALE_E_MODEL, "%s is not a GGUF model file; give the path of one, or run 'make demo' to fetch the "
                       "default", path);
    version = take_u32(&r);
    n_tensors = take_u64(&r);
    n_keys = take_u64(&r);
    if (r.bad || version < 2 || version > GGUF_VERSION)
        return is_fail(INFERSCALE_E_MODEL, "%s has GGUF version %u, and versions 2 and 3 can be read; convert the model again",
                       path, version);
    read_keys(&r, n_keys, &align, out);
    if (!r.bad) read_tensors(&r, n_tensors, align, &need, by_type);
    if (r.bad || n_tensors == 0)
        return is_fail(INFERSCALE_E_MODEL, "%s has a damaged or cut header (%llu bytes); fetch the model again", path,
                       (unsigned long long)n);
    data = (r.at + align - 1) / align * align;
    if (data > n || need > n - data)
        return is_fail(INFERSCALE_E_MODEL, "%s is cut short: it has %llu bytes and its tensors need %llu; fetch the model "
                       "again", path,
                       (unsigned long long)n, (unsigned long long)(data + need));
    for (uint32_t t = 0; t < GGML_TYPE_COUNT; t++)
        if (by_type[t] > by_type[best]) best = t;
    snprintf(out->weights, sizeof out->weights, "%s", ggml_type_name((enum ggml_type)best));
    for (char *c = out->weights; *c; c++)
        if (*c >= 'a' && *c <= 'z') *c = (char)(*c - 'a' + 'A');
    return INFERSCALE_OK;
}

is_status is_gguf_check(const char *path, is_gguf_facts *out)
{
    struct stat sb;
    void *map;
    is_status st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a named pipe would wait for its writer */

    memset(out, 0, sizeof *out);
    if (fd < 0)
        return is_fail(INFERSCALE_E_MODEL, "cannot open the model file %s (%s); check the path, or run 'make demo' to fetch "
                       "the default", path,
                       strerror(errno));
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode) || sb.st_size < 24) {
        close(fd);
        return is_fail(INFERSCALE_E_MODEL, "%s is not a GGUF model file (a folder, or too short); give the path of one", path);
    }
    map = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED) return is_fail(INFERSCALE_E_MODEL, "cannot map the model file %s (%s); free some memory", path,
                                          strerror(errno));
    out->file_bytes = (uint64_t)sb.st_size;
    st = check_bytes(path, map, (uint64_t)sb.st_size, out);
    munmap(map, (size_t)sb.st_size);
    return st;
}
