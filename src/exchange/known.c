/* known.c - a table of hashes of the turns that were there before the import. */
#include "exchange/known.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

enum { PAGE = 1000, NAME = IS_HASH_BYTES };

typedef struct entry {
    uint8_t name[NAME];
    int64_t id;              /* 0 = free */
    bool taken;
} entry;

struct known_turns {
    entry *table;            /* open addressing; a power of two */
    size_t cap, n;
    uint8_t (*scopes)[NAME]; /* those that were read */
    size_t n_scopes;
};

known_turns *known_new(void) { return is_calloc(1, sizeof(known_turns)); }

void known_free(known_turns *k)
{
    if (!k) return;
    is_free(k->table);
    is_free(k->scopes);
    is_free(k);
}

static is_status no_memory(void) { return is_fail(INFERSCALE_E_NOMEM, "out of memory; close other programs and try again"); }

/* ---- Names --------------------------------------------------------------------------------------------------------------- */

static void add_text(is_hash *h, const char *s, const char *fallback)
{
    if (!s || !*s) s = fallback;
    is_hash_field(h, s, strlen(s));
}

static void add_scope(is_hash *h, const inferscale_scope *s)
{
    add_text(h, s->tenant, "");
    add_text(h, s->user, "");
    add_text(h, s->agent, "");
    add_text(h, s->run, "");
    add_text(h, s->app, "");
}

static is_status name_of_scope(const inferscale_scope *s, uint8_t out[NAME])
{
    is_hash *h = NULL;
    IS_TRY(is_hash_new(NULL, &h));
    add_scope(h, s);
    is_hash_end(h, out);
    return INFERSCALE_OK;
}

static is_status name_of_turn(const inferscale_scope *s, const inferscale_turn *t, uint8_t out[NAME])
{
    is_hash *h = NULL;
    IS_TRY(is_hash_new(NULL, &h));
    add_scope(h, s);
    add_text(h, t->conversation, "default");
    add_text(h, t->speaker, "user");
    add_text(h, t->text, "");
    is_hash_u64(h, (uint64_t)t->time);
    is_hash_end(h, out);
    return INFERSCALE_OK;
}

/* ---- Table --------------------------------------------------------------------------------------------------------------- */

static size_t start(const uint8_t name[NAME], size_t cap)
{
    uint64_t v;
    memcpy(&v, name, sizeof v);
    return (size_t)v & (cap - 1);
}

static void put(entry *table, size_t cap, const entry *e)
{
    size_t i = start(e->name, cap);
    while (table[i].id) i = (i + 1) & (cap - 1);
    table[i] = *e;
}

static is_status add(known_turns *k, const entry *e)
{
    if ((k->n + 1) * 2 > k->cap) {
        size_t cap = k->cap ? k->cap * 2 : 1024;
        entry *table = is_calloc(cap, sizeof *table);
        if (!table) return no_memory();
        for (size_t i = 0; i < k->cap; i++)
            if (k->table[i].id) put(table, cap, &k->table[i]);
        is_free(k->table);
        k->table = table;
        k->cap = cap;
    }
    put(k->table, k->cap, e);
    k->n++;
    return INFERSCALE_OK;
}

/* ---- Reading ------------------------------------------------------------------------------------------------------------- */

static bool same(const char *attribute, const char *given) { return strcmp(attribute ? attribute : "", given ? given : "") == 0; }

/* Turns that carry more attributes than the scope names are another scope's. */
static is_status read_page(known_turns *k, const inferscale_scope *s, const inferscale_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        const inferscale_item *t = &list->items[i];
        const inferscale_turn turn = { .conversation = t->conversation, .speaker = t->speaker, .text = t->text, .time = t->event_time };
        entry e = { .id = t->id };
        if (!same(t->user, s->user) || !same(t->agent, s->agent) || !same(t->run, s->run) || !same(t->app, s->app)) continue;
        IS_TRY(name_of_turn(s, &turn, e.name));
        IS_TRY(add(k, &e));
    }
    return INFERSCALE_OK;
}

static is_status read_scope(known_turns *k, inferscale *is, const inferscale_scope *s)
{
    uint8_t name[NAME], (*more)[NAME];
    int64_t after = 0;
    size_t n = 1;
    IS_TRY(name_of_scope(s, name));
    for (size_t i = 0; i < k->n_scopes; i++)
        if (memcmp(k->scopes[i], name, NAME) == 0) return INFERSCALE_OK;
    while (n) {
        inferscale_list *list = NULL;
        is_status st = inferscale_ls(is, s, INFERSCALE_TURNS, after, PAGE, &list);
        if (st != INFERSCALE_OK) return st;
        st = read_page(k, s, list);
        n = list->n;
        if (n) after = list->items[n - 1].id;
        inferscale_list_free(list);
        if (st != INFERSCALE_OK) return st;
    }
    more = is_realloc(k->scopes, (k->n_scopes + 1) * sizeof *more);
    if (!more) return no_memory();
    k->scopes = more;
    memcpy(more[k->n_scopes++], name, NAME);
    return INFERSCALE_OK;
}

is_status known_take(known_turns *k, inferscale *is, const inferscale_scope *scope, const inferscale_turn *turn, int64_t *id)
{
    uint8_t name[NAME];
    *id = 0;
    if (turn->time == 0) return INFERSCALE_OK; /* it is said now: never before */
    IS_TRY(read_scope(k, is, scope));
    if (k->n == 0) return INFERSCALE_OK;
    IS_TRY(name_of_turn(scope, turn, name));
    for (size_t i = start(name, k->cap); k->table[i].id; i = (i + 1) & (k->cap - 1)) {
        if (k->table[i].taken || memcmp(k->table[i].name, name, NAME) != 0) continue;
        k->table[i].taken = true;
        *id = k->table[i].id;
        break;
    }
    return INFERSCALE_OK;
}
