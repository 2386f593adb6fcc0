/* traces.c - see traces.h. Windows are found by a rolling hash over all offsets, then compared. */
#include "support/traces.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"

static void *more(void *p, size_t n, size_t size)
{
    p = realloc(p, (n + 1) * size);
    if (!p) abort();
    return p;
}

void traces_add_word(traces *x, const char *word)
{
    x->words = more(x->words, x->n_words, sizeof *x->words);
    snprintf(x->words[x->n_words++], TRACES_WORD, "%s", word);
}

void traces_add_vector(traces *x, const void *vector)
{
    x->vectors = more(x->vectors, x->n_vectors, sizeof *x->vectors);
    memcpy(x->vectors[x->n_vectors++], vector, TRACES_VECTOR);
}

static uint8_t *read_whole(const char *path, size_t *n)
{
    uint8_t *bytes = NULL;

    *n = 0;
    return is_file_read_all(is_fs_posix(), path, 1u << 30, &bytes, n) == INFERSCALE_OK ? bytes : NULL;
}

static bool uniform(const uint8_t *p)
{
    for (int i = 1; i < TRACES_WINDOW; i++)
        if (p[i] != p[0]) return false;
    return true;
}

void traces_add_window(traces *x, const void *window)
{
    if (uniform(window)) return; /* zeros are everywhere */
    x->windows = more(x->windows, x->n_windows, sizeof *x->windows);
    memcpy(x->windows[x->n_windows++], window, TRACES_WINDOW);
}

void traces_free(traces *x)
{
    free(x->words);
    free(x->vectors);
    free(x->windows);
    free(x->table);
    *x = (traces){ 0 };
}

/* ---- Windows ------------------------------------------------------------------------------------------------------------- */

static const uint64_t ROLL = 0x100000001b3u;

static uint64_t window_hash(const uint8_t *p)
{
    uint64_t h = 0;

    for (int i = 0; i < TRACES_WINDOW; i++) h = h * ROLL + p[i] + 1;
    return h;
}

static uint64_t nonzero(uint64_t h)
{
    return h ? h : 1;
}

static void make_table(traces *x)
{
    size_t size = 16;

    while (size < 4 * (x->n_windows + 1)) size *= 2;
    free(x->table);
    x->table = calloc(size, sizeof *x->table);
    if (!x->table) abort();
    x->mask = size - 1;
    for (size_t i = 0; i < x->n_windows; i++) {
        uint64_t h = nonzero(window_hash(x->windows[i]));
        size_t at = h & x->mask;

        while (x->table[at] && x->table[at] != h) at = (at + 1) & x->mask;
        x->table[at] = h;
    }
}

static bool is_window(const traces *x, const uint8_t *p, uint64_t h)
{
    for (size_t at = h & x->mask; x->table[at]; at = (at + 1) & x->mask) {
        if (x->table[at] != h) continue;
        for (size_t i = 0; i < x->n_windows; i++)
            if (memcmp(x->windows[i], p, TRACES_WINDOW) == 0) return true;
    }
    return false;
}

static size_t find_windows(const traces *x, const uint8_t *p, size_t n)
{
    uint64_t h = 0, top = 1;
    size_t hits = 0;

    if (n < TRACES_WINDOW || !x->n_windows) return 0;
    for (int i = 0; i < TRACES_WINDOW; i++) top *= ROLL;
    h = window_hash(p);
    for (size_t at = 0;; at++) {
        hits += is_window(x, p + at, nonzero(h));
        if (at + TRACES_WINDOW >= n) return hits;
        h = h * ROLL + p[at + TRACES_WINDOW] + 1 - top * ((uint64_t)p[at] + 1);
    }
}

/* ---- Files --------------------------------------------------------------------------------------------------------------- */

void traces_each_file(const char *dir, void (*each)(void *ctx, const char *path), void *ctx)
{
    DIR *d = opendir(dir);

    for (struct dirent *e; d && (e = readdir(d));) {
        char path[1200];
        struct stat st;

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (lstat(path, &st) != 0) continue;
        if (S_ISDIR(st.st_mode)) traces_each_file(path, each, ctx);
        else each(ctx, path);
    }
    if (d) closedir(d);
}

typedef struct searching {
    const traces *x;
    bool (*wanted)(void *ctx, const uint8_t *vector);
    void *ctx;
    char *where, what[TRACES_WORD];
    size_t hits;
} searching;

static void hit(searching *s, const char *what, size_t n)
{
    if (n && !s->hits) snprintf(s->what, sizeof s->what, "%s", what);
    s->hits += n;
}

static void search_file(void *ctx, const char *path)
{
    searching *s = ctx;
    const traces *x = s->x;
    size_t n, before = s->hits;
    uint8_t *bytes = read_whole(path, &n);

    if (!bytes) return; /* gone meanwhile */
    for (size_t k = 0; k < x->n_words; k++)
        if (memmem(bytes, n, x->words[k], strlen(x->words[k]))) hit(s, x->words[k], 1);
    for (size_t k = 0; k < x->n_vectors; k++)
        if (memmem(bytes, n, x->vectors[k], TRACES_VECTOR) && !(s->wanted && s->wanted(s->ctx, x->vectors[k]))) hit(s, "a vector", 1);
    hit(s, "KV", find_windows(x, bytes, n));
    if (s->hits > before && !before) snprintf(s->where, 900, "%s (%s)", path, s->what);
    is_free(bytes);
}

size_t traces_search(traces *x, const char *dir, bool (*wanted)(void *ctx, const uint8_t *vector), void *ctx, char where[900])
{
    searching s = { .x = x, .wanted = wanted, .ctx = ctx, .where = where };

    where[0] = 0;
    make_table(x);
    traces_each_file(dir, search_file, &s);
    return s.hits;
}
