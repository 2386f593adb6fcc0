/* bench_cells.c - how should many users' cells lie: in one cache that all see (unified), or in a stream each? With flash attention or
 * without? What decides it: a decode of one token for each of U users who have C cells each, a question of Q tokens behind those
 * cells, and loading the cells.
 *
 *   make build/release/tests/llama_bench_cells && taskset -c 1 build/release/tests/llama_bench_cells MODEL [USERS [CELLS [ROUNDS]]]
 *
 * The four arms take turns in every round; medians are printed. Uses libllama alone, none of our code. One thread, and its CPU time: a
 * busy machine does not matter. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "llama.h"

enum { ARMS = 4, USERS_MAX = 64, ROUNDS_MAX = 101, QUESTION = 28, TOKENS = 8, UBATCH = 512 };
enum { LOAD, ASK, DECODE, MIXED, WHATS };

static const char *const arm_names[ARMS] = { "unified, FA off", "unified, FA on", "streams, FA off", "streams, FA on" };
static const char *const what_names[WHATS] = { "load one", "a question", "a decode of all", "question + decode" };

/* CPU time of this thread, which does all the work. */
static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void die(const char *why)
{
    fprintf(stderr, "bench_cells: %s\n", why);
    exit(1);
}

static void quiet(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

typedef struct arm {
    struct llama_context *ctx;
    uint8_t *state;          /* one user's cells */
    size_t len;
    int unified;
    double ms[WHATS][ROUNDS_MAX];
} arm;

static int users = 8, cells = 1450, rounds = 7;

static struct llama_context *context(struct llama_model *m, int unified, int fa)
{
    struct llama_context_params p = llama_context_default_params();
    int each = (cells + 256 + 255) / 256 * 256;

    p.n_seq_max = (uint32_t)users + 1;
    p.n_ctx = (uint32_t)(each * (users + 1));
    p.n_batch = p.n_ubatch = UBATCH;
    p.n_threads = p.n_threads_batch = 1;
    p.kv_unified = unified;
    p.n_outputs_max = (uint32_t)users + 1;
    p.flash_attn_type = fa ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    p.offload_kqv = false;
    return llama_init_from_model(m, p);
}

/* Adds n tokens of a sequence at pos; logits of the last. */
static void add(struct llama_batch *b, int seq, int pos, int n, int n_vocab)
{
    for (int i = 0; i < n; i++) {
        int k = b->n_tokens++;

        b->token[k] = (7 * (pos + i) + 13 * seq + 100) % n_vocab;
        b->pos[k] = pos + i;
        b->n_seq_id[k] = 1;
        b->seq_id[k][0] = seq;
        b->logits[k] = i + 1 == n;
    }
}

static double decode(struct llama_context *ctx, struct llama_batch *b)
{
    double t0 = now_ms();

    if (llama_decode(ctx, *b) != 0) die("llama_decode failed");
    b->n_tokens = 0;
    return now_ms() - t0;
}

static void cut(const arm *a, int seq, int pos)
{
    llama_memory_seq_rm(llama_get_memory(a->ctx), seq, pos, -1);
}

/* The cells of one user into the sequence, as the engine does it: straight into a stream, by a scratch sequence into a unified cache. */
static double load(const arm *a, int seq)
{
    llama_memory_t mem = llama_get_memory(a->ctx);
    double t0 = now_ms();

    cut(a, seq, -1);
    if (llama_state_seq_set_data(a->ctx, a->state, a->len, a->unified ? users : seq) != a->len) die("a state could not be loaded");
    if (a->unified) {
        llama_memory_seq_cp(mem, users, seq, -1, -1);
        llama_memory_seq_rm(mem, users, -1, -1);
    }
    return now_ms() - t0;
}

static void prepare(arm *a, struct llama_batch *b, int n_vocab)
{
    for (int at = 0; at < cells; at += UBATCH) {
        add(b, 0, at, cells - at < UBATCH ? cells - at : UBATCH, n_vocab);
        decode(a->ctx, b);
    }
    a->len = llama_state_seq_get_size(a->ctx, 0);
    a->state = malloc(a->len);
    if (!a->state || llama_state_seq_get_data(a->ctx, a->state, a->len, 0) != a->len) die("a state could not be taken");
    for (int s = 0; s < users; s++) load(a, s);
}

static void measure(arm *a, struct llama_batch *b, int round, int n_vocab)
{
    a->ms[LOAD][round] = load(a, round % users);
    add(b, 0, cells, QUESTION, n_vocab);
    a->ms[ASK][round] = decode(a->ctx, b);
    cut(a, 0, cells);
    a->ms[DECODE][round] = 0;
    for (int t = 0; t < TOKENS; t++) {
        for (int s = 0; s < users; s++) add(b, s, cells + t, 1, n_vocab);
        a->ms[DECODE][round] += decode(a->ctx, b) / TOKENS;
    }
    for (int s = 0; s < users; s++) cut(a, s, cells);
    for (int s = 0; s < users; s++) add(b, s, cells, s == users / 2 ? QUESTION : 1, n_vocab);
    a->ms[MIXED][round] = decode(a->ctx, b);
    for (int s = 0; s < users; s++) cut(a, s, cells);
}

static int by_size(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;

    return a < b ? -1 : a > b;
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_size);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

int main(int argc, char **argv)
{
    static arm arms[ARMS];
    struct llama_model *m;
    struct llama_batch b;
    int n_vocab;

    if (argc < 2) die("usage: llama_bench_cells MODEL.gguf [USERS [CELLS [ROUNDS]]]");
    if (argc > 2) users = atoi(argv[2]);
    if (argc > 3) cells = atoi(argv[3]);
    if (argc > 4) rounds = atoi(argv[4]);
    if (users < 1 || users > USERS_MAX || cells < 1 || cells > 1 << 16 || rounds < 1 || rounds > ROUNDS_MAX) die("out of range");
    llama_log_set(quiet, NULL);
    m = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!m) die("the model cannot be loaded");
    n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(m));
    b = llama_batch_init(UBATCH + USERS_MAX, 0, 1);
    b.n_tokens = 0;
    for (int i = 0; i < ARMS; i++) {
        arms[i].unified = i < 2;
        arms[i].ctx = context(m, arms[i].unified, i % 2);
        if (!arms[i].ctx) die("a context cannot be made");
        prepare(&arms[i], &b, n_vocab);
        measure(&arms[i], &b, 0, n_vocab);
    }
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < ARMS; i++) measure(&arms[i], &b, r, n_vocab);
    printf("%d users, %d cells each, a question of %d tokens, %d rounds: milliseconds\n\n%-18s", users, cells, QUESTION, rounds, "");
    for (int i = 0; i < ARMS; i++) printf("%18s", arm_names[i]);
    for (int w = 0; w < WHATS; w++) {
        printf("\n%-18s", what_names[w]);
        for (int i = 0; i < ARMS; i++) printf("%18.1f", median(arms[i].ms[w], rounds));
    }
    printf("\n");
    for (int i = 0; i < ARMS; i++) {
        llama_free(arms[i].ctx);
        free(arms[i].state);
    }
    llama_batch_free(b);
    llama_model_free(m);
    return 0;
}
