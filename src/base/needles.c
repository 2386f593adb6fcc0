/* needles.c - rolling hashes (cyclic polynomials) over windows of three lengths, a bitmap that turns nearly all away, then a table. */
#include "base/needles.h"

#include <sodium.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

enum { CLASSES = 3, HISTORY = 64, SHORT = 8, BITMAP_BITS = 22, MAX_SHORT = 1 << 16, ARENA_STEP = 1 << 16, PIECE = 64 * 1024 };

static const uint32_t widths[CLASSES] = { SHORT, 32, 64 };

typedef struct slot {
    uint64_t key;        /* checksum of the window; short needles: of their last 8 bytes */
    uint32_t needle;     /* number + 1; 0 = free */
} slot;

typedef struct pool {
    uint64_t *bitmap;    /* [1 << BITMAP_BITS] bits, by rolling hash */
    slot *slots;         /* a power of two, half full at most */
    size_t cap, n;
    uint64_t hash;       /* of the last width bytes */
} pool;

/* at, len: a short needle's bytes in the arena; next: another one with the same end, number + 1. */
typedef struct info { int kind; uint32_t at, len, next; } info;

struct is_needles {
    pool pools[CLASSES];
    uint64_t table[256]; /* random */
    info *infos;
    size_t n, cap, max;
    uint8_t *arena;
    size_t arena_len, arena_cap;
    bool locked;
    uint64_t left_out;
    uint64_t fed;
    uint8_t room[HISTORY + PIECE]; /* the last bytes of the stream, and the next piece */
};

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "no memory for what is to be looked for; free some and try again");
}

is_status is_needles_new(size_t max_blocks, is_needles **out)
{
    is_needles *s = is_calloc(1, sizeof *s);

    *out = s;
    if (!s) return no_memory();
    s->max = max_blocks;
    is_random(s->table, sizeof s->table);
    return INFERSCALE_OK;
}

static void free_arena(is_needles *s)
{
    if (s->arena) {
        if (s->locked) sodium_munlock(s->arena, s->arena_cap); /* wipes, too */
        is_wipe(s->arena, s->arena_cap);
    }
    is_free(s->arena);
}

void is_needles_free(is_needles *s)
{
    if (!s) return;
    for (int c = 0; c < CLASSES; c++) {
        is_wipe(s->pools[c].slots, s->pools[c].cap * sizeof(slot));
        is_free(s->pools[c].slots);
        is_free(s->pools[c].bitmap);
    }
    free_arena(s);
    is_free(s->infos);
    is_wipe(s, sizeof *s);
    is_free(s);
}

/* ---- Rolling ------------------------------------------------------------------------------------------------------------- */

static uint64_t rotl(uint64_t x, uint32_t n)
{
    n &= 63;
    return n ? x << n | x >> (64 - n) : x;
}

static uint64_t hash_of(const is_needles *s, const uint8_t *p, uint32_t width)
{
    uint64_t h = 0;

    for (uint32_t i = 0; i < width; i++) h = rotl(h, 1) ^ s->table[p[i]];
    return h;
}

static uint32_t bit_of(uint64_t hash)
{
    return (uint32_t)((hash * 0x9e3779b97f4a7c15u) >> (64 - BITMAP_BITS));
}

/* ---- Adding -------------------------------------------------------------------------------------------------------------- */

static slot *find(const pool *c, uint64_t key)
{
    size_t i = (size_t)key & (c->cap - 1);

    while (c->slots[i].needle && c->slots[i].key != key) i = (i + 1) & (c->cap - 1);
    return &c->slots[i];
}

static is_status grow(pool *c)
{
    size_t cap = c->cap ? c->cap * 2 : 256;
    pool grown = { .cap = cap, .slots = is_calloc(cap, sizeof(slot)) };

    if (!c->bitmap && !(c->bitmap = is_calloc((size_t)1 << (BITMAP_BITS - 6), sizeof *c->bitmap))) {
        is_free(grown.slots);
        return no_memory();
    }
    if (!grown.slots) return no_memory();
    for (size_t i = 0; i < c->cap; i++)
        if (c->slots[i].needle) *find(&grown, c->slots[i].key) = c->slots[i];
    is_wipe(c->slots, c->cap * sizeof(slot));
    is_free(c->slots);
    c->slots = grown.slots;
    c->cap = cap;
    return INFERSCALE_OK;
}

static is_status add_info(is_needles *s, info i)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 256;
        info *grown = is_realloc(s->infos, cap * sizeof *grown);

        if (!grown) return no_memory();
        s->infos = grown;
        s->cap = cap;
    }
    s->infos[s->n++] = i;
    return INFERSCALE_OK;
}

/* Enters a window of the class; bytes of a short needle lie in the arena. Short ones with the same end hang together. */
static is_status enter(is_needles *s, int class_no, const uint8_t *window, info i)
{
    pool *c = &s->pools[class_no];
    uint64_t hash = hash_of(s, window, widths[class_no]), key = is_checksum(window, widths[class_no]);
    slot *at;

    if (2 * (c->n + 1) > c->cap) IS_TRY(grow(c));
    at = find(c, key);
    if (at->needle && class_no != 0) return INFERSCALE_OK; /* the same bytes again */
    i.next = at->needle;
    IS_TRY(add_info(s, i));
    c->n += !at->needle;
    *at = (slot){ .key = key, .needle = (uint32_t)s->n };
    c->bitmap[bit_of(hash) >> 6] |= (uint64_t)1 << (bit_of(hash) & 63);
    return INFERSCALE_OK;
}

static is_status keep_bytes(is_needles *s, const uint8_t *p, size_t n, uint32_t *at)
{
    if (s->arena_len + n > s->arena_cap) {
        size_t cap = s->arena_cap + (n > ARENA_STEP ? n : ARENA_STEP);
        uint8_t *grown = is_malloc_aligned(4096, cap);

        if (!grown) return no_memory();
        if (s->arena_len) memcpy(grown, s->arena, s->arena_len);
        free_arena(s);
        s->arena = grown;
        s->arena_cap = cap;
        s->locked = sodium_mlock(grown, cap) == 0; /* else it may be swapped: docs say so */
    }
    *at = (uint32_t)s->arena_len;
    memcpy(s->arena + s->arena_len, p, n);
    s->arena_len += n;
    return INFERSCALE_OK;
}

static bool uniform(const uint8_t *p, size_t n)
{
    uint8_t other = p[0];

    for (size_t i = 1; i < n; i++) {
        if (p[i] == p[0] || p[i] == other) continue;
        if (other != p[0]) return false;
        other = p[i];
    }
    return true;
}

static is_status add_short(is_needles *s, int kind, const uint8_t *p, size_t n)
{
    info i = { .kind = kind, .len = (uint32_t)n };

    if (n < SHORT || uniform(p, n) || s->n >= s->max || s->pools[0].n >= MAX_SHORT) {
        s->left_out++;
        return INFERSCALE_OK;
    }
    for (size_t k = 0; k < s->n; k++)
        if (s->infos[k].len == n && memcmp(s->arena + s->infos[k].at, p, n) == 0) return INFERSCALE_OK;
    IS_TRY(keep_bytes(s, p, n, &i.at));
    return enter(s, 0, p + n - SHORT, i);
}

is_status is_needles_add(is_needles *s, int kind, const void *bytes, size_t n, uint32_t block, size_t budget)
{
    const uint8_t *p = bytes;
    const uint32_t width = block == 64 && n >= 64 ? 64 : 32;
    size_t blocks, step;

    if (n < 32) return add_short(s, kind, p, n);
    blocks = (n + width - 1) / width; /* the last one ends with the string, and may overlap the one before */
    step = budget && blocks > budget ? (blocks + budget - 1) / budget : 1;
    for (size_t b = 0; b < blocks; b++) {
        const uint8_t *at = b + 1 < blocks ? p + b * width : p + n - width;

        if (b % step || s->n >= s->max || uniform(at, width)) s->left_out++;
        else IS_TRY(enter(s, width == 64 ? 2 : 1, at, (info){ .kind = kind }));
    }
    return INFERSCALE_OK;
}

size_t is_needles_count(const is_needles *s)
{
    return s->n;
}

uint64_t is_needles_left_out(const is_needles *s)
{
    return s->left_out;
}

/* ---- Looking ------------------------------------------------------------------------------------------------------------- */

void is_needles_begin(is_needles *s)
{
    is_wipe(s->room, sizeof s->room);
    for (int c = 0; c < CLASSES; c++) s->pools[c].hash = hash_of(s, s->room, widths[c]);
    s->fed = 0;
}

/* The window that ends before `end` looks like a needle. back: bytes that may be read before end. */
static is_status confirm(is_needles *s, int class_no, const uint8_t *end, size_t back, uint64_t offset, is_needle_fn hit, void *ctx)
{
    const pool *c = &s->pools[class_no];
    const slot *at = find(c, is_checksum(end - widths[class_no], widths[class_no]));

    for (uint32_t needle = at->needle; needle; needle = s->infos[needle - 1].next) {
        const info *i = &s->infos[needle - 1];
        const uint32_t len = i->len ? i->len : widths[class_no];

        if (offset < len || len > back || (i->len && memcmp(end - len, s->arena + i->at, len) != 0)) continue;
        IS_TRY(hit(ctx, needle - 1, i->kind, offset));
    }
    return INFERSCALE_OK;
}

/* p[-HISTORY .. n) may be read. */
static is_status roll(is_needles *s, int class_no, const uint8_t *p, size_t n, is_needle_fn hit, void *ctx)
{
    pool *c = &s->pools[class_no];
    const uint32_t width = widths[class_no];
    const uint64_t *bitmap = c->bitmap;
    uint64_t h = c->hash;

    if (!c->n) return INFERSCALE_OK;
    for (size_t i = 0; i < n; i++) {
        uint32_t bit;

        h = rotl(h, 1) ^ rotl(s->table[*(p + i - width)], width) ^ s->table[p[i]];
        bit = bit_of(h);
        if (__builtin_expect(bitmap[bit >> 6] >> (bit & 63) & 1, 0))
            IS_TRY(confirm(s, class_no, p + i + 1, i + 1 + HISTORY, s->fed + i + 1, hit, ctx));
    }
    c->hash = h;
    return INFERSCALE_OK;
}

/* A piece is copied behind what came before it, so that every window lies in one run of memory. */
is_status is_needles_feed(is_needles *s, const uint8_t *p, size_t n, is_needle_fn hit, void *ctx)
{
    is_status st = INFERSCALE_OK;

    while (st == INFERSCALE_OK && n) {
        size_t m = n < PIECE ? n : PIECE;

        memcpy(s->room + HISTORY, p, m);
        for (int c = 0; c < CLASSES && st == INFERSCALE_OK; c++) st = roll(s, c, s->room + HISTORY, m, hit, ctx);
        memmove(s->room, s->room + m, HISTORY);
        s->fed += m;
        p += m;
        n -= m;
    }
    return st;
}
