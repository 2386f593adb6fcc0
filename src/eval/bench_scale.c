/* bench_scale.c - see bench_scale.h. */
#include "eval/bench_scale.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "eval/lab.h"
#include "eval/stats.h"
#include "eval/synth.h"

/* As many dimensions as the default embedder has. */
#define EMBEDDER "mock:dim=384"

enum { ROUNDS = 10, SETS = 16, MAX_REPEATS = 1001, FEW_REPEATS = 21, MANY_OWNERS = 100, K = 10 };

typedef struct bench {
    const bench_scale_options *o;
    uint32_t owners, facts, kv_owners, repeats;
    lab *many, *alone;
    char **texts[SETS];        /* [facts] each; owner i has the texts of set i % SETS */
    int64_t *times;            /* [facts] */
    uint64_t done, total;      /* facts written */
    int64_t target[2];         /* the fact that the next step changes or forgets, in each store; set before the clock starts */
    bench_scale_row *row;
} bench;

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for the scale benchmark; ask for fewer owners or facts");
}

static is_status tick(bench *b, const char *what)
{
    if (!b->o->on_progress || !b->o->on_progress(b->o->progress_ctx, b->done, b->total, what)) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_CANCELLED, "the scale benchmark was cancelled; its stores are removed");
}

static void owner_name(uint32_t owner, char out[32])
{
    snprintf(out, 32, "owner-%05u", owner);
}

/* ---- Making the stores --------------------------------------------------------------------------------------------------- */

static is_status open_lab(bench *b, lab **out)
{
    inferscale_options store = b->o->store;

    store.engine = "mock";
    store.embedder = EMBEDDER;
    store.model = NULL;
    store.policy = "header";
    IS_TRY(lab_open(&store, "owner-00000", out));
    return is_handle_embedder((*out)->is);
}

static is_status put_vectors(lab *l, const char *const *texts, const inferscale_event *events, size_t n)
{
    is_embedder *e = l->is->embedder;
    uint32_t dim = is_embedder_dim(e);
    float *out = is_malloc(n * dim * sizeof *out);
    int8_t *q = is_malloc(n * dim);
    is_vector *v = is_malloc(n * sizeof *v);
    is_status st = out && q && v ? is_embedder_embed(e, texts, n, out) : no_memory();

    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++) {
        v[i] = (is_vector){ .id = events[i].id, .version = 1, .q = q + i * dim };
        is_quantize_i8(out + i * dim, dim, q + i * dim, &v[i].scale);
    }
    if (st == INFERSCALE_OK) st = is_bank_put_embeddings(l->is->bank, &l->partition, is_embedder_fingerprint(e), v, n, dim);
    is_free(out);
    is_free(q);
    is_free(v);
    return st;
}

/* Facts [from, from + n) of an owner, through the public call, and their vectors. */
static is_status add_facts(bench *b, lab *l, uint32_t owner, char *const *texts, const int64_t *times, size_t n)
{
    inferscale_fact *facts = is_calloc(n, sizeof *facts);
    inferscale_event *events = is_calloc(n, sizeof *events);
    char name[32];
    is_status st = facts && events ? INFERSCALE_OK : no_memory();

    owner_name(owner, name);
    if (st == INFERSCALE_OK) st = lab_use(l, name);
    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++) facts[i] = (inferscale_fact){ .text = texts[i], .event_time = times[i] };
    if (st == INFERSCALE_OK) st = inferscale_remember(l->is, &l->scope, facts, n, events);
    if (st == INFERSCALE_OK) st = put_vectors(l, (const char *const *)texts, events, n);
    is_free(facts);
    is_free(events);
    b->done += n;
    return st == INFERSCALE_OK ? tick(b, "remembering") : st;
}

/* One round: the next facts of every owner. */
static is_status fill_round(bench *b, lab *l, uint32_t owners, uint32_t round)
{
    uint32_t from = (uint32_t)((uint64_t)b->facts * round / ROUNDS), to = (uint32_t)((uint64_t)b->facts * (round + 1) / ROUNDS);

    for (uint32_t owner = 0; to > from && owner < owners; owner++)
        IS_TRY(add_facts(b, l, owner, b->texts[owner % SETS] + from, b->times + from, to - from));
    return INFERSCALE_OK;
}

static is_status invent(bench *b)
{
    is_status st = INFERSCALE_OK;

    b->times = is_calloc(b->facts, sizeof *b->times);
    for (uint32_t i = 0; st == INFERSCALE_OK && i < SETS; i++) {
        b->texts[i] = is_calloc(b->facts, sizeof **b->texts);
        st = b->times && b->texts[i] ? synth_facts(b->o->seed + i, b->facts, b->texts[i], b->times) : no_memory();
    }
    return st;
}

static void free_texts(bench *b)
{
    for (uint32_t i = 0; i < SETS; i++) {
        for (uint32_t k = 0; b->texts[i] && k < b->facts; k++) is_free(b->texts[i][k]);
        is_free(b->texts[i]);
    }
    is_free(b->times);
}

static is_status encode_owners(lab *l, uint32_t owners)
{
    for (uint32_t owner = 0; owner < owners; owner++) {
        char name[32];

        owner_name(owner, name);
        IS_TRY(lab_use(l, name));
        IS_TRY(inferscale_encode(l->is, &l->scope, NULL));
    }
    return INFERSCALE_OK;
}

static is_status make_stores(bench *b)
{
    double t0 = is_now_ms();

    IS_TRY(invent(b));
    IS_TRY(open_lab(b, &b->many));
    IS_TRY(open_lab(b, &b->alone));
    b->total = (uint64_t)b->facts * (b->owners + 1);
    for (uint32_t round = 0; round < ROUNDS; round++) IS_TRY(fill_round(b, b->many, b->owners, round));
    b->row->fill_s = (is_now_ms() - t0) / 1000;
    for (uint32_t round = 0; round < ROUNDS; round++) IS_TRY(fill_round(b, b->alone, 1, round));
    t0 = is_now_ms();
    IS_TRY(encode_owners(b->many, b->kv_owners));
    b->row->encode_s = (is_now_ms() - t0) / 1000;
    IS_TRY(encode_owners(b->alone, 1));
    IS_TRY(lab_use(b->many, "owner-00000"));
    return lab_use(b->alone, "owner-00000");
}

/* ---- What is measured ---------------------------------------------------------------------------------------------------- */

typedef is_status (*step_fn)(bench *b, lab *l, uint32_t i);

static is_status recall_by(bench *b, lab *l, uint32_t i, int method)
{
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list *list = NULL;
    char question[SYNTH_QUESTION];

    synth_question(b->o->seed + i, question);
    o.k = K;
    o.method = method;
    IS_TRY(inferscale_recall(l->is, &l->scope, question, &o, &list));
    inferscale_list_free(list);
    return INFERSCALE_OK;
}

static is_status recall_fused(bench *b, lab *l, uint32_t i)
{
    return recall_by(b, l, i, INFERSCALE_FUSED);
}

static is_status recall_words(bench *b, lab *l, uint32_t i)
{
    return recall_by(b, l, i, INFERSCALE_LEXICAL);
}

static is_status recall_first(bench *b, lab *l, uint32_t i)
{
    is_recall_forget(l->is->recall, l->partition.id);
    return recall_by(b, l, i, INFERSCALE_FUSED);
}

static is_status ask_once(bench *b, lab *l, uint32_t i)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    char question[SYNTH_QUESTION];
    is_status st;

    synth_question(b->o->seed + i, question);
    o.k = K;
    o.max_tokens = 1;
    IS_TRY(inferscale_ask(l->is, &l->scope, question, &o, &a));
    st = a->tokens_injected ? INFERSCALE_OK : is_fail(INFERSCALE_E_INTERNAL, "no KV was used (%s); report this", a->fallback);
    inferscale_answer_free(a);
    return st;
}

static void measured_text(uint32_t i, const char *what, char out[96])
{
    snprintf(out, 96, "The measuring of number %u was %s on a Tuesday in autumn.", i, what);
}

static is_status remember_one(bench *b, lab *l, uint32_t i)
{
    char text[96];
    inferscale_fact f = { .text = text, .event_time = 1704103200 };

    measured_text(i, "written down", text);
    return inferscale_remember(l->is, &l->scope, &f, 1, NULL);
}

/* The ids of this owner's facts, the measured ones last. */
static is_status nth_fact(lab *l, uint32_t back, int64_t *id)
{
    inferscale_list *list = NULL;
    is_status st = inferscale_ls(l->is, &l->scope, INFERSCALE_FACTS, 0, 0, &list);

    if (st != INFERSCALE_OK) return st;
    if (back < list->n) *id = list->items[list->n - 1 - back].id;
    else st = is_fail(INFERSCALE_E_INTERNAL, "%zu facts are there, one before the last %u was wanted; report this", list->n, back);
    inferscale_list_free(list);
    return st;
}

/* Runs a step in both stores, one after the other, the order changing; the first time is not kept. before (may be NULL) is not timed. */
static is_status compare(bench *b, step_fn before, step_fn step, uint32_t repeats, const char *what, bench_scale_pair *out)
{
    double (*ms)[MAX_REPEATS] = is_malloc(2 * sizeof *ms);
    is_status st = ms ? tick(b, what) : no_memory();

    for (uint32_t i = 0; st == INFERSCALE_OK && i <= repeats; i++) {
        for (uint32_t k = 0; st == INFERSCALE_OK && k < 2; k++) {
            uint32_t which = (i + k) % 2;
            lab *l = which ? b->alone : b->many;
            double t0;

            if (before) st = before(b, l, i);
            t0 = is_now_ms();
            if (st == INFERSCALE_OK) st = step(b, l, i);
            if (i) ms[which][i - 1] = is_now_ms() - t0;
        }
    }
    if (st == INFERSCALE_OK) {
        out->many_ms = stats_median(ms[0], repeats);
        out->alone_ms = stats_median(ms[1], repeats);
        out->ratio = out->many_ms / out->alone_ms;
    }
    is_free(ms);
    return st;
}

static is_status choose_last(bench *b, lab *l, uint32_t i)
{
    return nth_fact(l, 0, &b->target[l == b->alone]);
}

/* In the midst of the owner's facts: it has KV, and so have those whose context it stood in. */
static is_status choose_middle(bench *b, lab *l, uint32_t i)
{
    return nth_fact(l, b->facts / 2, &b->target[l == b->alone]);
}

static is_status update_one(bench *b, lab *l, uint32_t i)
{
    char text[96];
    inferscale_fact f = { .text = text, .event_time = 1704103200 };

    measured_text(i, "changed", text);
    return inferscale_update(l->is, &l->scope, b->target[l == b->alone], &f);
}

static is_status forget_one(bench *b, lab *l, uint32_t i)
{
    size_t n = 0;

    IS_TRY(inferscale_forget(l->is, &l->scope, &b->target[l == b->alone], 1, &n));
    return n == 1 ? INFERSCALE_OK : is_fail(INFERSCALE_E_INTERNAL, "%zu facts were forgotten, one was to be; report this", n);
}

static is_status open_close(bench *b, lab *l, uint32_t i)
{
    inferscale_options store = b->o->store;
    inferscale *is = NULL;

    store.engine = "mock";
    store.embedder = EMBEDDER;
    store.model = NULL;
    store.home = l->home;
    IS_TRY(inferscale_open(&is, &store));
    inferscale_close(is);
    return INFERSCALE_OK;
}

/* Other owners are at work too: their indexes are in memory beside the measured one's. */
static is_status warm_others(bench *b)
{
    uint32_t n = b->owners < MANY_OWNERS ? b->owners : MANY_OWNERS;

    for (uint32_t owner = 1; owner < n; owner++) {
        char name[32];

        owner_name(owner, name);
        IS_TRY(lab_use(b->many, name));
        IS_TRY(recall_fused(b, b->many, owner));
    }
    return lab_use(b->many, "owner-00000");
}

static is_status measure_calls(bench *b)
{
    uint32_t few = b->repeats < FEW_REPEATS ? b->repeats : FEW_REPEATS;
    bench_scale_row *r = b->row;

    IS_TRY(warm_others(b));
    IS_TRY(compare(b, NULL, recall_fused, b->repeats, "recalling", &r->recall));
    IS_TRY(compare(b, NULL, recall_words, b->repeats, "recalling by words", &r->recall_words));
    IS_TRY(compare(b, NULL, recall_first, few, "first recalls", &r->first_recall));
    IS_TRY(compare(b, NULL, ask_once, few, "asking", &r->ask));
    IS_TRY(compare(b, NULL, open_close, few, "opening", &r->open));
    IS_TRY(compare(b, NULL, remember_one, few, "remembering one", &r->remember));
    IS_TRY(compare(b, choose_middle, update_one, few, "changing one", &r->update));
    return compare(b, choose_last, forget_one, few, "forgetting one", &r->forget);
}

/* ---- The large store as a whole ------------------------------------------------------------------------------------------ */

static uint64_t resident_bytes(void)
{
    unsigned long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    if (f && fscanf(f, "%lu %lu", &pages, &resident) != 2) resident = 0;
    if (f) fclose(f);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

is_status bench_scale_memory(const bench_scale_options *options, const char *home, uint64_t rss[3])
{
    inferscale_options store = options->store;
    inferscale_list *list = NULL;
    inferscale *is = NULL;
    uint64_t before = resident_bytes();
    is_status st;

    store.engine = "mock";
    store.embedder = EMBEDDER;
    store.model = NULL;
    store.home = home;
    IS_TRY(inferscale_open(&is, &store));
    rss[0] = resident_bytes() - before;
    st = INFERSCALE_OK;
    for (uint32_t owner = 0; st == INFERSCALE_OK && owner < MANY_OWNERS; owner++) {
        char name[32];
        inferscale_scope scope = { .user = name };

        owner_name(owner, name);
        st = inferscale_recall(is, &scope, "Who repaired the violin in Oslo?", NULL, &list);
        inferscale_list_free(list);
        list = NULL;
        if (owner == 0) rss[1] = resident_bytes() - before;
    }
    rss[2] = resident_bytes() - before;
    inferscale_close(is);
    return st;
}

static void count_tree(const char *path, bench_scale_row *r)
{
    DIR *d = opendir(path);

    for (struct dirent *e; d && (e = readdir(d));) {
        char below[4096];
        struct stat st;

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(below, sizeof below, "%s/%s", path, e->d_name);
        if (lstat(below, &st) != 0) continue;
        r->n_folders += S_ISDIR(st.st_mode);
        r->n_files += !S_ISDIR(st.st_mode);
        if (S_ISDIR(st.st_mode)) count_tree(below, r);
        else if (strncmp(e->d_name, "bank.sqlite", 11) == 0) r->bank_bytes += (uint64_t)st.st_size;
        else r->vault_bytes += (uint64_t)st.st_size;
    }
    if (d) closedir(d);
}

static is_status measure_whole(bench *b)
{
    inferscale_store_info info;
    bench_scale_row *r = b->row;
    uint64_t rss[3] = { 0 };
    char name[32];
    double t0 = is_now_ms();

    IS_TRY(tick(b, "looking at the whole"));
    IS_TRY(inferscale_store(b->many->is, 0, &info));
    r->store_info_ms = is_now_ms() - t0;
    if (b->o->on_home) IS_TRY(b->o->on_home(b->o->home_ctx, b->many->home, rss));
    r->rss_open_bytes = rss[0];
    r->rss_one_bytes = rss[1];
    r->rss_many_bytes = rss[2];
    count_tree(b->many->home, r);
    owner_name(b->owners - 1, name);
    IS_TRY(lab_use(b->many, name));
    t0 = is_now_ms();
    IS_TRY(inferscale_forget_all(b->many->is, &b->many->scope, NULL));
    r->forget_owner_ms = is_now_ms() - t0;
    return INFERSCALE_OK;
}

is_status bench_scale(const bench_scale_options *options, bench_scale_row *row)
{
    bench b = { .o = options, .owners = options->owners ? options->owners : 1000, .facts = options->facts ? options->facts : 1000,
                .kv_owners = options->kv_owners ? options->kv_owners : 3,
                .repeats = options->repeats ? options->repeats : 101, .row = row };
    is_status st;

    memset(row, 0, sizeof *row);
    if (b.owners < 2 || b.facts < 50 || b.facts > 10000 || b.kv_owners >= b.owners || b.repeats >= MAX_REPEATS)
        return is_fail(INFERSCALE_E_INVALID, "the scale benchmark takes 2 or more owners, 50 to 10,000 facts each, fewer owners with KV "
                       "than owners, and up to %d repeats", MAX_REPEATS - 1);
    row->owners = b.owners;
    row->facts = b.facts;
    row->kv_owners = b.kv_owners;
    row->repeats = b.repeats;
    st = make_stores(&b);
    if (st == INFERSCALE_OK) st = measure_calls(&b);
    if (st == INFERSCALE_OK) st = measure_whole(&b);
    lab_close(b.many);
    lab_close(b.alone);
    free_texts(&b);
    return st;
}
