/* kv_api.c - the public KV section: segments for connectors to other engines.
 *
 * A connector opens many segments of one model. Their rotation tables are the same, so they are kept once per process and
 * geometry, as long as any segment of that geometry is open, and made for as many positions as were asked for so far. */
#include <pthread.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "kv/compose.h"

enum { FIRST_SHIFT = 12, LAST_SHIFT = 24 }; /* tables for 4,096 positions and powers of two above, up to 2^24 */

typedef struct shared_tables {
    struct shared_tables *next;
    is_geometry *geometry;
    unsigned refs;
    _Atomic(is_rope *) tables[LAST_SHIFT - FIRST_SHIFT + 1];
} shared_tables;

struct inferscale_segment {
    is_segment *segment;
    shared_tables *shared;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the list, its refs, and making a table */
static shared_tables *all_tables;

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory opening a KV segment; close others or free memory");
}

static is_status tables_acquire(const is_geometry *g, shared_tables **out)
{
    shared_tables *t;

    pthread_mutex_lock(&lock);
    for (t = all_tables; t && !is_geometry_equal(t->geometry, g); t = t->next) continue;
    if (!t && (t = is_calloc(1, sizeof *t))) {
        t->geometry = is_geometry_copy(g);
        if (t->geometry) {
            t->next = all_tables;
            all_tables = t;
        } else {
            is_free(t);
            t = NULL;
        }
    }
    if (t) t->refs++;
    pthread_mutex_unlock(&lock);
    *out = t;
    return t ? INFERSCALE_OK : no_memory();
}

static void tables_release(shared_tables *t)
{
    shared_tables **at = &all_tables;

    pthread_mutex_lock(&lock);
    if (--t->refs) {
        pthread_mutex_unlock(&lock);
        return;
    }
    while (*at != t) at = &(*at)->next;
    *at = t->next;
    pthread_mutex_unlock(&lock);
    for (int i = 0; i <= LAST_SHIFT - FIRST_SHIFT; i++) is_rope_free(atomic_load(&t->tables[i]));
    is_geometry_free(t->geometry);
    is_free(t);
}

/* A table that covers positions 0 .. n_pos-1. Larger ones that are there serve smaller requests; none is freed while in use. */
static is_status tables_for(shared_tables *t, uint64_t n_pos, const is_rope **out)
{
    int first = 0;
    is_rope *r = NULL;
    is_status st = INFERSCALE_OK;

    *out = NULL;
    while (first <= LAST_SHIFT - FIRST_SHIFT && UINT64_C(1) << (first + FIRST_SHIFT) < n_pos) first++;
    if (first > LAST_SHIFT - FIRST_SHIFT)
        return is_fail(INFERSCALE_E_INVALID, "position %llu is beyond every context; pass the token's position in the sequence",
                       (unsigned long long)n_pos);
    for (int i = first; i <= LAST_SHIFT - FIRST_SHIFT && !r; i++) r = atomic_load_explicit(&t->tables[i], memory_order_acquire);
    if (!r) {
        pthread_mutex_lock(&lock);
        r = atomic_load_explicit(&t->tables[first], memory_order_acquire);
        if (!r) st = is_rope_new(t->geometry, 1u << (first + FIRST_SHIFT), &r);
        if (st == INFERSCALE_OK) atomic_store_explicit(&t->tables[first], r, memory_order_release);
        pthread_mutex_unlock(&lock);
    }
    *out = r;
    return st;
}

inferscale_status inferscale_segment_open(const char *path, inferscale_segment **out)
{
    inferscale_segment *s;
    is_status st;

    if (!out) return is_fail(INFERSCALE_E_INVALID, "inferscale_segment_open needs a place for its result; pass &segment");
    *out = NULL;
    if (!path || !*path) return is_fail(INFERSCALE_E_INVALID, "no path of a KV segment given; pass a .seg file of the vault");
    s = is_calloc(1, sizeof *s);
    if (!s) return no_memory();
    st = is_segment_read(is_fs_default(), path, &s->segment);
    if (st == INFERSCALE_OK) st = tables_acquire(is_segment_info(s->segment)->geometry, &s->shared);
    if (st != INFERSCALE_OK) {
        inferscale_segment_close(s);
        return st;
    }
    *out = s;
    return INFERSCALE_OK;
}

void inferscale_segment_close(inferscale_segment *segment)
{
    if (!segment) return;
    if (segment->shared) tables_release(segment->shared);
    is_segment_unref(segment->segment);
    is_free(segment);
}

uint32_t inferscale_segment_tokens(const inferscale_segment *segment)
{
    return segment ? is_segment_info(segment->segment)->n_tokens : 0;
}

uint32_t inferscale_segment_planes(const inferscale_segment *segment)
{
    return segment ? is_segment_info(segment->segment)->geometry->n_planes : 0;
}

inferscale_status inferscale_segment_plane(const inferscale_segment *segment, uint32_t plane, inferscale_plane *out)
{
    const is_plane *p;

    if (!segment || !out || plane >= inferscale_segment_planes(segment))
        return is_fail(INFERSCALE_E_INVALID, "plane %u of a segment of %u planes; ask for one that is there", plane,
                       inferscale_segment_planes(segment));
    p = &is_segment_info(segment->segment)->geometry->planes[plane];
    *out = (inferscale_plane) {
        .layer = p->layer, .is_v = p->is_v, .n_heads = p->n_heads, .head_dim = p->head_dim, .rot_begin = p->rot_begin,
        .rot_dim = p->rot_dim, .pairing = p->pairing, .freq = p->freq, .window = p->window,
    };
    return INFERSCALE_OK;
}

const int32_t *inferscale_segment_token_ids(const inferscale_segment *segment)
{
    return segment ? is_segment_info(segment->segment)->tokens : NULL;
}

inferscale_status inferscale_segment_read(const inferscale_segment *segment, uint32_t plane, uint32_t token_begin,
                                          uint32_t token_end, uint32_t head_begin, uint32_t head_end, int32_t pos, int dst_type,
                                          void *dst, size_t token_stride, size_t head_stride)
{
    const is_rope *rope = NULL;
    inferscale_plane p;

    IS_TRY(inferscale_segment_plane(segment, plane, &p));
    if (dst_type < INFERSCALE_F32 || dst_type > INFERSCALE_BF16)
        return is_fail(INFERSCALE_E_INVALID,
                       "unknown destination type %d; use INFERSCALE_F32, INFERSCALE_F16 or INFERSCALE_BF16", dst_type);
    if (p.rot_dim && token_end > token_begin) {
        if (pos < 0)
            return is_fail(INFERSCALE_E_INVALID, "position %d is negative; pass the token's position in the sequence", pos);
        IS_TRY(tables_for(segment->shared, (uint64_t)pos + (token_end - token_begin), &rope));
    }
    return is_compose_rows(segment->segment, rope, plane, token_begin, token_end, head_begin, head_end,
                           pos < 0 ? 0 : (uint32_t)pos, (is_codec)dst_type, dst, token_stride, head_stride);
}
