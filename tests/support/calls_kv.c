/* calls_kv.c - cases of calls.c for what a connector calls: the KV of a live engine, and tickets. */
#include "support/calls_kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MUST(expr)                                                                                                             \
    do {                                                                                                                       \
        if ((expr) != INFERSCALE_OK) fail_msg("%s: %s", #expr, inferscale_error());                                            \
    } while (0)

static void remove_files(const calls *c)
{
    char path[900];

    snprintf(path, sizeof path, "%s/00/%064d.seg", c->spare, 0);
    unlink(path);
    snprintf(path, sizeof path, "%s/00/%064d.seg.part", c->spare, 0);
    unlink(path);
    snprintf(path, sizeof path, "%s/00", c->spare);
    rmdir(path);
    rmdir(c->spare);
}

enum { KV_HEADS = 2, KV_DIM = 16, KV_TOKENS = 8, KV_HALF = KV_HEADS * KV_DIM * KV_TOKENS };
static const uint8_t ticket_secret[32] = { 5 };

static inferscale_status open_kv(calls *c)
{
    static const inferscale_plane planes[2] = {
        { .n_heads = KV_HEADS, .head_dim = KV_DIM, .rot_dim = KV_DIM, .pairing = 2 }, { .is_v = 1, .n_heads = KV_HEADS, .head_dim = KV_DIM },
    };
    static const double w[KV_DIM / 2] = { 1, 0.5, 0.25, 0.125, 0.06, 0.03, 0.01, 0.001 };
    static const inferscale_kv_freqs freqs = { .n_pairs = KV_DIM / 2, .n_pos = 64, .mscale = 1, .w = w };
    const char *dir = c->spare;
    inferscale_kv_desc d = INFERSCALE_KV_DESC_INIT;

    d.n_planes = 2;
    d.n_freqs = 1;
    d.planes = planes;
    d.freqs = &freqs;
    d.dirs = &dir;
    d.n_dirs = 1;
    return inferscale_kv_open(&d, &c->kv);
}

inferscale_status calls_run_kv_open(calls *c)
{
    inferscale_status st = open_kv(c);

    assert_true((st == INFERSCALE_OK) == (c->kv != NULL));
    return st;
}

void calls_close_kv(calls *c, inferscale_status st)
{
    (void)st;
    inferscale_kv_load_close(c->load);
    inferscale_kv_close(c->kv);
    inferscale_ticket_text_free(c->ticket);
    c->load = NULL;
    c->kv = NULL;
    c->ticket = NULL;
    remove_files(c);
}

void calls_have_kv(calls *c)
{
    char folder[700];

    MUST(open_kv(c));
    snprintf(folder, sizeof folder, "%s/00", c->spare);
    assert_int_equal(mkdir(c->spare, 0700), 0);
    assert_int_equal(mkdir(folder, 0700), 0);
}

inferscale_status calls_run_kv_write(calls *c)
{
    static const int32_t tokens[KV_TOKENS] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    static float rows[2][KV_HALF];
    const void *planes[2] = { rows[0], rows[1] };
    char path[800];

    for (int i = 0; i < KV_HALF; i++) rows[0][i] = rows[1][i] = (float)i;
    snprintf(path, sizeof path, "%s/00/%064d.seg", c->spare, 0);
    return inferscale_kv_write(c->kv, path, tokens, KV_TOKENS, 0, 0, 2, 0, KV_HEADS, INFERSCALE_F32, planes);
}

void calls_have_kv_file(calls *c)
{
    calls_have_kv(c);
    MUST(calls_run_kv_write(c));
}

static const inferscale_kv_part kv_part = { .n_tokens = KV_TOKENS, .pos = 3 };

inferscale_status calls_run_kv_check(calls *c)
{
    static const int32_t prompt[] = { 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8 };

    return inferscale_kv_check(c->kv, &kv_part, prompt, 11);
}

/* A file of that name is whole, or there is none; a write that reported success has left one. */
void calls_kv_written_or_not(calls *c, inferscale_status st)
{
    inferscale_status there = calls_run_kv_check(c);

    assert_true(there == INFERSCALE_OK || (st != INFERSCALE_OK && there == INFERSCALE_E_NOTFOUND));
    calls_close_kv(c, st);
}

inferscale_status calls_run_kv_load_open(calls *c)
{
    inferscale_status st = inferscale_kv_load_open(c->kv, &kv_part, 1, 0, 2, 0, KV_HEADS, &c->load, NULL);

    assert_true((st == INFERSCALE_OK) == (c->load != NULL));
    return st;
}

inferscale_status calls_run_kv_load_open_again(calls *c)
{
    inferscale_kv_load_close(c->load);
    c->load = NULL;
    return calls_run_kv_load_open(c);
}

void calls_have_kv_load(calls *c)
{
    calls_have_kv_file(c);
    MUST(calls_run_kv_load_open(c));
}

inferscale_status calls_run_kv_load_read(calls *c)
{
    float rows[KV_HALF];
    inferscale_status st = inferscale_kv_load_read(c->load, 1, INFERSCALE_F32, rows, KV_HEADS * KV_DIM, KV_DIM);

    for (int i = 0; st == INFERSCALE_OK && i < KV_HALF; i++) assert_true(rows[i] == (float)i);
    return st;
}

inferscale_status calls_run_kv_geometry(calls *c)
{
    const uint8_t *bytes;
    size_t n;

    return inferscale_kv_geometry(c->kv, &bytes, &n);
}

inferscale_status calls_run_kv_match(calls *c)
{
    static float keys[64 * KV_DIM]; /* 64 heads of one token at position 0 stay as they are */
    int how = -1;
    inferscale_status st;

    for (int i = 0; i < 64 * KV_DIM; i++) keys[i] = (float)(i % 7) + 1;
    st = inferscale_kv_match(c->kv, 0, INFERSCALE_F32, keys, keys, 1, 64, 0, &how);
    assert_int_equal(how, INFERSCALE_ROT_F32);
    return st;
}

inferscale_status calls_run_ticket_write(calls *c)
{
    inferscale_ticket t = INFERSCALE_TICKET_INIT;
    inferscale_status st;

    t.op = INFERSCALE_TICKET_INJECT;
    t.n_prompt = 11;
    t.n_parts = 1;
    t.parts = &kv_part;
    t.expires = 100;
    st = inferscale_ticket_write(&t, ticket_secret, &c->ticket);
    assert_true((st == INFERSCALE_OK) == (c->ticket != NULL));
    return st;
}

void calls_have_ticket(calls *c)
{
    MUST(calls_run_ticket_write(c));
}

inferscale_status calls_run_ticket_read(calls *c)
{
    inferscale_ticket *t = NULL;
    inferscale_status st = inferscale_ticket_read(c->ticket, ticket_secret, 99, &t);

    assert_true(st == INFERSCALE_OK ? t->n_parts == 1 && t->parts[0].pos == 3 : !t);
    inferscale_ticket_free(t);
    return st;
}
