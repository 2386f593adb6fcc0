/* ram_tier.c - a chained hash table threaded by a list in order of use. Names are keyed hashes, so their first bytes are as
 * good a hash as any. */
#include "kv/ram_tier.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

struct ram_entry {
    is_segment *segment;
    uint8_t name[IS_HASH_BYTES], of[IS_HASH_BYTES];
    size_t bytes;
    ram_entry *chain;          /* next in the bucket */
    ram_entry *newer, *older;
};

enum { FIRST_BUCKETS = 64 };

static const uint8_t *name_of(const ram_entry *e)
{
    return e->name;
}

/* Where the entry of that name hangs, or where the chain ends. */
static ram_entry **find(const ram_tier *r, const uint8_t *name)
{
    ram_entry **at = &r->buckets[is_get_u64(name) & (r->n_buckets - 1)];

    while (*at && memcmp(name_of(*at), name, IS_HASH_BYTES)) at = &(*at)->chain;
    return at;
}

static void list_remove(ram_tier *r, ram_entry *e)
{
    *(e->newer ? &e->newer->older : &r->newest) = e->older;
    *(e->older ? &e->older->newer : &r->oldest) = e->newer;
}

static void list_add(ram_tier *r, ram_entry *e)
{
    e->newer = NULL;
    e->older = r->newest;
    *(r->newest ? &r->newest->newer : &r->oldest) = e;
    r->newest = e;
}

static void take_out(ram_tier *r, ram_entry **at)
{
    ram_entry *e = *at;

    *at = e->chain;
    list_remove(r, e);
    r->bytes -= e->bytes;
    r->n_entries--;
    is_segment_unref(e->segment);
    is_free(e);
}

/* Doubles the table. If there is no memory the chains just get longer; false only if there is no table at all. */
static bool grow(ram_tier *r)
{
    size_t n = r->n_buckets ? 2 * r->n_buckets : FIRST_BUCKETS;
    ram_entry **grown = is_calloc(n, sizeof *grown);

    if (!grown) return r->n_buckets > 0;
    for (ram_entry *e = r->newest; e; e = e->older) {
        ram_entry **bucket = &grown[is_get_u64(name_of(e)) & (n - 1)];

        e->chain = *bucket;
        *bucket = e;
    }
    is_free(r->buckets);
    r->buckets = grown;
    r->n_buckets = n;
    return true;
}

void ram_clear(ram_tier *r)
{
    while (r->oldest) take_out(r, find(r, name_of(r->oldest)));
    is_free(r->buckets);
    r->buckets = NULL;
    r->n_buckets = 0;
}

is_segment *ram_get(ram_tier *r, const uint8_t name[IS_HASH_BYTES])
{
    ram_entry *e = r->n_buckets ? *find(r, name) : NULL;

    if (!e) return NULL;
    list_remove(r, e);
    list_add(r, e);
    return is_segment_ref(e->segment);
}

bool ram_has(const ram_tier *r, const uint8_t name[IS_HASH_BYTES])
{
    return r->n_buckets && *find(r, name);
}

void ram_put(ram_tier *r, const uint8_t name[IS_HASH_BYTES], const uint8_t of[IS_HASH_BYTES], is_segment *s)
{
    size_t bytes = is_segment_bytes(s);
    ram_entry *e, **at;

    if (bytes > r->budget || ram_has(r, name)) return;
    while (r->bytes + bytes > r->budget) {
        take_out(r, find(r, name_of(r->oldest)));
        r->evictions++;
    }
    if (r->n_entries >= r->n_buckets && !grow(r)) return;
    e = is_malloc(sizeof *e);
    if (!e) return;
    e->segment = is_segment_ref(s);
    e->bytes = bytes;
    memcpy(e->name, name, IS_HASH_BYTES);
    memcpy(e->of, of, IS_HASH_BYTES);
    at = find(r, name);
    e->chain = NULL;
    *at = e;
    list_add(r, e);
    r->bytes += bytes;
    r->n_entries++;
}

void ram_drop(ram_tier *r, const uint8_t name[IS_HASH_BYTES])
{
    ram_entry **at = r->n_buckets ? find(r, name) : NULL;

    if (at && *at) take_out(r, at);
}

void ram_wipe(ram_tier *r, const uint8_t name[IS_HASH_BYTES])
{
    ram_entry **at = r->n_buckets ? find(r, name) : NULL;

    if (!at || !*at) return;
    is_segment_wipe((*at)->segment);
    take_out(r, at);
}

static bool is_one_of(const uint8_t *name, const uint8_t (*of)[IS_HASH_BYTES], size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(name, of[i], IS_HASH_BYTES) == 0) return true;
    return false;
}

/* Forgetting is rare and the tier holds thousands of entries at most: they are all looked at. */
void ram_forget(ram_tier *r, const uint8_t (*of)[IS_HASH_BYTES], size_t n)
{
    for (ram_entry *e = r->newest, *older; e; e = older) {
        older = e->older;
        if (!is_one_of(e->of, of, n)) continue;
        is_segment_wipe(e->segment);
        take_out(r, find(r, e->name));
    }
}
