/* index.c - keeping a partition's index in step with the bank. */
#include "recall/index.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/time.h"
#include "embed/embed.h"
#include "recall/scan.h"

enum { FEW = 8 }; /* of so many items one */

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for the recall index; free some and try again");
}

static void drop_vectors(is_index *x)
{
    is_free(x->rows);
    is_free(x->scales);
    is_free(x->row_items);
    x->rows = NULL;
    x->scales = NULL;
    x->row_items = NULL;
    x->n_rows = x->cap_rows = x->stride = 0;
    x->dim = 0;
    x->has_vectors = false;
    for (size_t i = 0; i < x->n; i++) x->items[i].row = IS_NO_ROW;
}

void is_index_clear(is_index *x)
{
    drop_vectors(x);
    for (size_t i = 0; i < x->n_names; i++) is_free(x->names[i]);
    is_free(x->names);
    is_free(x->items);
    is_lexical_free(x->words);
    memset(x, 0, sizeof *x);
}

size_t is_index_bytes(const is_index *x)
{
    size_t names = 0;
    for (size_t i = 0; i < x->n_names; i++) names += strlen(x->names[i]) + 17;
    return sizeof *x + x->cap * sizeof *x->items + (x->words ? is_lexical_bytes(x->words) : 0) + names +
           x->cap_rows * (x->stride + sizeof *x->scales + sizeof *x->row_items);
}

bool is_index_fresh(const is_index *x, const is_partition *p, const uint8_t *fingerprint)
{
    if (!x->loaded || x->epoch != p->epoch || x->revision != p->revision) return false;
    return !fingerprint || (x->has_vectors && memcmp(x->fingerprint, fingerprint, IS_HASH_BYTES) == 0);
}

/* ---- Items and words ----------------------------------------------------------------------------------------------------- */

uint32_t is_index_name(const is_index *x, const char *name)
{
    if (!name || !*name) return 0;
    for (size_t i = 1; i < x->n_names; i++)
        if (strcmp(x->names[i], name) == 0) return (uint32_t)i;
    return IS_NO_ROW;
}

/* Attributes are few (agents, apps) or come in runs, so the newest are looked at first and a list is enough. */
static is_status enter_name(is_index *x, const char *name, uint32_t *out)
{
    *out = 0;
    if (!name || !*name) return INFERSCALE_OK;
    for (size_t i = x->n_names; i > 1; i--)
        if (strcmp(x->names[i - 1], name) == 0) {
            *out = (uint32_t)(i - 1);
            return INFERSCALE_OK;
        }
    if (x->n_names + 2 > x->cap_names) {
        size_t cap = x->cap_names ? x->cap_names * 2 : 16;
        char **names = is_realloc(x->names, cap * sizeof *names);
        if (!names) return no_memory();
        x->names = names;
        x->cap_names = cap;
    }
    if (x->n_names == 0 && !(x->names[x->n_names++] = is_strdup(""))) {
        x->n_names = 0;
        return no_memory();
    }
    char *copy = is_strdup(name);
    if (!copy) return no_memory();
    *out = (uint32_t)x->n_names;
    x->names[x->n_names++] = copy;
    return INFERSCALE_OK;
}

void is_index_key(const inferscale_item *item, const char *prev_speaker, const char *prev_text, char date[32],
                  const char *parts[5])
{
    bool turn = item->kind == INFERSCALE_TURNS;
    is_date_text(item->dated ? item->event_time : 0, date);
    parts[0] = date;
    parts[1] = turn ? prev_speaker : NULL;
    parts[2] = turn ? prev_text : NULL;
    parts[3] = turn ? item->speaker : NULL;
    parts[4] = item->text;
}

static is_status add_item(void *ctx, const inferscale_item *item, const char *prev_speaker, const char *prev_text)
{
    is_index *x = ctx;
    const char *parts[5];
    char date[32];
    is_entry e = {.id = item->id, .event_time = item->event_time, .valid_from = item->valid_from, .valid_to = item->valid_to,
                  .expires = item->expires, .row = IS_NO_ROW, .kind = item->kind, .version = item->version,
                  .told = is_time_seconds(item->valid_from) <= item->write_time};

    if (x->n && item->id <= x->items[x->n - 1].id)
        return is_fail(INFERSCALE_E_INTERNAL, "the bank gave item %lld out of order; report this", (long long)item->id);
    if (x->n == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 64;
        is_entry *items = is_realloc(x->items, cap * sizeof *items);
        if (!items) return no_memory();
        x->items = items;
        x->cap = cap;
    }
    IS_TRY(enter_name(x, item->agent, &e.agent));
    IS_TRY(enter_name(x, item->run, &e.run));
    IS_TRY(enter_name(x, item->app, &e.app));
    is_index_key(item, prev_speaker, prev_text, date, parts);
    IS_TRY(is_lexical_add(x->words, item->kind == INFERSCALE_TURNS, parts, 5));
    x->items[x->n++] = e;
    return INFERSCALE_OK;
}

/* ---- Vectors ------------------------------------------------------------------------------------------------------------- */

const is_entry *is_index_find(const is_index *x, int64_t id)
{
    size_t lo = 0, hi = x->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (x->items[mid].id == id) return &x->items[mid];
        if (x->items[mid].id < id) lo = mid + 1;
        else hi = mid;
    }
    return NULL;
}

static is_status grow_rows(is_index *x)
{
    if (x->n_rows < x->cap_rows) return INFERSCALE_OK;
    size_t cap = x->cap_rows ? x->cap_rows * 2 : 64;
    int8_t *rows = is_malloc_aligned(64, cap * x->stride);
    float *scales = is_realloc(x->scales, cap * sizeof *scales);
    if (scales) x->scales = scales;
    uint32_t *items = is_realloc(x->row_items, cap * sizeof *items);
    if (items) x->row_items = items;
    if (!rows || !scales || !items) {
        is_free(rows);
        return no_memory();
    }
    if (x->n_rows) memcpy(rows, x->rows, x->n_rows * x->stride);
    is_free(x->rows);
    x->rows = rows;
    x->cap_rows = cap;
    return INFERSCALE_OK;
}

static bool is_past(const is_index *x, int64_t id)
{
    size_t lo = 0, hi = x->n_past;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (x->past[mid] == id) return true;
        if (x->past[mid] < id) lo = mid + 1;
        else hi = mid;
    }
    return false;
}

static is_status add_vector(void *ctx, int64_t id, const int8_t *q, uint32_t dim, float scale)
{
    is_index *x = ctx;
    const is_entry *found = is_index_find(x, id);
    is_entry *e = found ? &x->items[found - x->items] : NULL;

    /* Held already, or of an item written after the items were read: the next sync takes that one. */
    if (!e || e->row != IS_NO_ROW || is_past(x, id)) return INFERSCALE_OK;
    if (x->dim == 0) {
        x->dim = dim;
        x->stride = ((size_t)dim + 63) & ~(size_t)63;
    }
    if (dim == 0 || dim != x->dim)
        return is_fail(INFERSCALE_E_CORRUPT,
                       "item %lld has a vector of %u dimensions among vectors of %u; embed this store again",
                       (long long)id, dim, x->dim);
    IS_TRY(grow_rows(x));
    memset(x->rows + x->n_rows * x->stride + dim, 0, x->stride - dim);
    memcpy(x->rows + x->n_rows * x->stride, q, dim);
    x->scales[x->n_rows] = scale;
    x->row_items[x->n_rows] = (uint32_t)(e - x->items);
    e->row = (uint32_t)x->n_rows++;
    return INFERSCALE_OK;
}

/* A few are asked for by name: all of them would be read again for every fact that is told. */
static is_status sync_few(is_index *x, is_bank *bank, const is_partition *p, const uint8_t *fingerprint)
{
    for (size_t i = 0; i < x->n; i++) {
        int8_t *q = NULL;
        uint32_t dim;
        float scale;
        is_status st = x->items[i].row == IS_NO_ROW ? is_bank_get_embedding(bank, p, fingerprint, x->items[i].id, &q, &dim, &scale)
                                                    : INFERSCALE_E_NOTFOUND;

        if (st == INFERSCALE_OK) st = add_vector(x, x->items[i].id, q, dim, scale);
        is_free(q);
        if (st != INFERSCALE_OK && st != INFERSCALE_E_NOTFOUND) return st;
    }
    return INFERSCALE_OK;
}

static is_status sync_vectors(is_index *x, is_bank *bank, const is_partition *p, const uint8_t *fingerprint)
{
    const size_t missing = x->n - x->n_rows;

    if (missing == 0) return INFERSCALE_OK;
    if (missing <= x->n / FEW) return sync_few(x, bank, p, fingerprint);
    return is_bank_each_embedding(bank, p, fingerprint, add_vector, x);
}

/* ---- In step with the bank ----------------------------------------------------------------------------------------------- */

static is_status sync_items(is_index *x, is_bank *bank, const is_partition *p)
{
    if (!x->words) IS_TRY(is_lexical_new(&x->words));
    return is_bank_each(bank, p, x->n ? x->items[x->n - 1].id : 0, add_item, x);
}

is_status is_index_sync(is_index *x, is_bank *bank, const is_partition *p, const uint8_t *fingerprint)
{
    uint8_t want[IS_HASH_BYTES];
    is_status st = INFERSCALE_OK;

    if (fingerprint) memcpy(want, fingerprint, sizeof want);
    else if (x->has_vectors) memcpy(want, x->fingerprint, sizeof want);
    bool vectors = fingerprint || x->has_vectors;

    if (x->loaded && x->epoch != p->epoch) is_index_clear(x);
    else if (x->has_vectors && memcmp(x->fingerprint, want, sizeof want) != 0) drop_vectors(x);
    if (!x->loaded || x->revision != p->revision) st = sync_items(x, bank, p);
    if (st == INFERSCALE_OK && vectors) st = sync_vectors(x, bank, p, want);
    if (st != INFERSCALE_OK) { /* half an index would answer wrongly in silence */
        is_index_clear(x);
        return st;
    }
    if (vectors) memcpy(x->fingerprint, want, sizeof want);
    x->has_vectors = vectors;
    x->loaded = true;
    x->epoch = p->epoch;
    x->revision = p->revision;
    return INFERSCALE_OK;
}

is_status is_index_build_at(is_index *x, is_bank *bank, const is_partition *p, int64_t at, const int64_t *past, size_t n_past,
                            const uint8_t *fingerprint)
{
    is_status st = is_lexical_new(&x->words);

    if (st == INFERSCALE_OK) st = is_bank_each_at(bank, p, at, add_item, x);
    x->past = past;
    x->n_past = n_past;
    if (st == INFERSCALE_OK && fingerprint) st = is_bank_each_embedding(bank, p, fingerprint, add_vector, x);
    x->past = NULL;
    x->n_past = 0;
    return st;
}

is_status is_index_dense(const is_index *x, const float *v, uint32_t dim, float *cosine)
{
    float scale;
    is_status st = INFERSCALE_OK;

    for (size_t i = 0; i < x->n; i++) cosine[i] = NAN;
    if (x->n_rows == 0) return INFERSCALE_OK;
    if (dim != x->dim)
        return is_fail(INFERSCALE_E_INVALID,
                       "the query's vector has %u dimensions, the stored ones %u; use the embedder that made them",
                       dim, x->dim);
    int8_t *q = is_malloc(dim);
    int32_t *dots = is_malloc(x->n_rows * sizeof *dots);
    if (!q || !dots) {
        st = no_memory();
    } else {
        is_quantize_i8(v, dim, q, &scale);
        is_scan_dot(q, x->rows, x->stride, dim, x->n_rows, dots);
        for (size_t r = 0; r < x->n_rows; r++) cosine[x->row_items[r]] = (float)dots[r] * scale * x->scales[r];
    }
    is_free(q);
    is_free(dots);
    return st;
}
