/* safetensors.c - see safetensors.h. jansson parses the JSON; everything it says is checked here. */
#include "tools/safetensors.h"

#include <jansson.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/sort.h"

static const struct { const char *name; unsigned bytes; } dtypes[ST_DTYPE_COUNT] = {
#define ST_X(name, bytes) { #name, bytes },
    ST_DTYPE_MAP(ST_X)
#undef ST_X
};

const char *st_dtype_name(st_dtype t)
{
    return (unsigned)t < ST_DTYPE_COUNT ? dtypes[t].name : "unknown";
}

static is_status corrupt(const char *name, const char *what)
{
    return is_fail(INFERSCALE_E_CORRUPT, "safetensors file: tensor '%.80s' %s; fetch the file again", name, what);
}

static is_status read_dtype(const char *name, const json_t *v, st_dtype *out)
{
    const char *s = json_string_value(v);

    if (!s) return corrupt(name, "has no dtype");
    for (unsigned i = 0; i < ST_DTYPE_COUNT; i++) {
        if (!strcmp(s, dtypes[i].name)) {
            *out = (st_dtype)i;
            return INFERSCALE_OK;
        }
    }
    return is_fail(INFERSCALE_E_UNSUPPORTED, "safetensors file: tensor '%.80s' has the element type '%.20s', which is not "
                   "supported; convert it to F32 or F16 first", name, s);
}

/* shape -> t->shape, and the bytes it stands for; each factor is bounded by what 64 bits hold. */
static is_status read_shape(const char *name, const json_t *v, st_tensor *t, uint64_t *n_bytes)
{
    uint64_t total = dtypes[t->dtype].bytes;
    size_t n = json_array_size(v);

    if (!json_is_array(v)) return corrupt(name, "has no shape");
    if (n > ST_MAX_DIMS)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "safetensors file: tensor '%.80s' has %zu dimensions; at most %d are supported",
                       name, n, ST_MAX_DIMS);
    for (size_t i = 0; i < n; i++) {
        const json_t *d = json_array_get(v, i);
        json_int_t dim = json_integer_value(d);

        if (!json_is_integer(d) || dim < 0) return corrupt(name, "has a dimension that is not a whole number");
        t->shape[i] = (uint64_t)dim;
        if (dim && total > UINT64_MAX / (uint64_t)dim) return corrupt(name, "has a shape too large for 64 bits");
        total *= (uint64_t)dim;
    }
    t->n_dims = (uint32_t)n;
    *n_bytes = total;
    return INFERSCALE_OK;
}

static is_status read_tensor(const char *name, const json_t *v, const uint8_t *data, uint64_t n_data, st_tensor *t)
{
    const json_t *offsets = json_object_get(v, "data_offsets");
    const json_t *b = json_array_get(offsets, 0), *e = json_array_get(offsets, 1);
    json_int_t begin = json_integer_value(b), end = json_integer_value(e);
    uint64_t n_bytes = 0;

    if (!json_is_object(v)) return corrupt(name, "is not an object");
    IS_TRY(read_dtype(name, json_object_get(v, "dtype"), &t->dtype));
    IS_TRY(read_shape(name, json_object_get(v, "shape"), t, &n_bytes));
    if (json_array_size(offsets) != 2 || !json_is_integer(b) || !json_is_integer(e)) return corrupt(name, "has no data_offsets");
    if (begin < 0 || end < begin || (uint64_t)end > n_data) return corrupt(name, "lies outside the file");
    if ((uint64_t)(end - begin) != n_bytes) return corrupt(name, "has a shape that does not fit its data_offsets");
    t->data = data + begin;
    t->n_bytes = n_bytes;
    t->name = is_strdup(name);
    return t->name ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory reading a safetensors file; free some memory");
}

static is_status check_metadata(const json_t *v)
{
    const char *key;
    json_t *value;

    if (!json_is_object(v)) return corrupt("__metadata__", "is not an object");
    json_object_foreach((json_t *)v, key, value)
        if (!json_is_string(value)) return corrupt("__metadata__", "holds something that is not a string");
    return INFERSCALE_OK;
}

/* By data, empty tensors before the one that begins where they do. */
static int by_data(const void *a, const void *b)
{
    const st_tensor *x = a, *y = b;

    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes;
}

static is_status check_cover(const st_file *f, const uint8_t *data, uint64_t n_data)
{
    const uint8_t *at = data;

    for (size_t i = 0; i < f->n; i++) {
        if (f->tensors[i].data < at) return corrupt(f->tensors[i].name, "overlaps another");
        if (f->tensors[i].data > at) return corrupt(f->tensors[i].name, "leaves a hole before it");
        at += f->tensors[i].n_bytes;
    }
    if (at != data + n_data)
        return is_fail(INFERSCALE_E_CORRUPT, "safetensors file: %zu bytes belong to no tensor; fetch the file again",
                       (size_t)(data + n_data - at));
    return INFERSCALE_OK;
}

static is_status read_header(json_t *root, const uint8_t *data, uint64_t n_data, st_file *f)
{
    const char *key;
    json_t *value;
    size_t n = json_object_size(root);

    if (!json_is_object(root))
        return is_fail(INFERSCALE_E_CORRUPT, "safetensors file: the header is not a JSON object; fetch the file again");
    if (n > ST_MAX_TENSORS)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "safetensors file: %zu tensors; at most %d are supported", n, ST_MAX_TENSORS);
    f->tensors = is_calloc(n + 1, sizeof(*f->tensors));
    if (!f->tensors) return is_fail(INFERSCALE_E_NOMEM, "out of memory reading a safetensors file; free some memory");
    json_object_foreach(root, key, value) {
        if (!strcmp(key, "__metadata__")) {
            IS_TRY(check_metadata(value));
        } else {
            IS_TRY(read_tensor(key, value, data, n_data, &f->tensors[f->n]));
            f->n++;
        }
    }
    is_sort(f->tensors, f->n, sizeof(*f->tensors), by_data);
    return check_cover(f, data, n_data);
}

is_status st_parse(const uint8_t *p, size_t n, st_file **out)
{
    json_error_t err;
    json_t *root;
    st_file *f;
    uint64_t n_header;
    is_status st;

    *out = NULL;
    if (n < 8) return is_fail(INFERSCALE_E_CORRUPT, "safetensors file: only %zu bytes; fetch the file again", n);
    n_header = is_get_u64(p);
    if (n_header > ST_MAX_HEADER || n_header > n - 8)
        return is_fail(INFERSCALE_E_CORRUPT, "safetensors file: its header claims %llu bytes, %zu follow; it is cut short or not "
                       "a safetensors file", (unsigned long long)n_header, n - 8);
    if (!n_header || p[8] != '{')
        return is_fail(INFERSCALE_E_CORRUPT, "safetensors file: the header does not begin with '{'; this is another kind of file");
    root = json_loadb((const char *)p + 8, (size_t)n_header, JSON_REJECT_DUPLICATES, &err);
    if (!root)
        return is_fail(INFERSCALE_E_CORRUPT, "safetensors file: header byte %d: %.120s; fetch the file again", err.position, err.text);
    f = is_calloc(1, sizeof(*f));
    st = f ? read_header(root, p + 8 + n_header, n - 8 - n_header, f)
           : is_fail(INFERSCALE_E_NOMEM, "out of memory reading a safetensors file; free some memory");
    json_decref(root);
    if (st != INFERSCALE_OK) st_free(f);
    else *out = f;
    return st;
}

void st_free(st_file *f)
{
    if (!f) return;
    for (size_t i = 0; f->tensors && i < f->n; i++) is_free(f->tensors[i].name);
    is_free(f->tensors);
    is_free(f);
}

const st_tensor *st_find(const st_file *f, const char *name)
{
    for (size_t i = 0; i < f->n; i++)
        if (!strcmp(f->tensors[i].name, name)) return &f->tensors[i];
    return NULL;
}
