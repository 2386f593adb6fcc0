/* metrics.c - see metrics.h. One lock over small tables: a series is found by comparing its labels, of which there are few.
 *
 * Series that dashboards divide by or take rates of are there from the start, at zero. */
#include "serve/metrics.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/utf8.h"

enum { SERIES_MAX = 200, LABEL_BYTES = 128, LABELS = 3, BUCKETS = 20 };

typedef enum kind { COUNTER, GAUGE, SECONDS, KL } kind;

typedef struct metric {
    kind kind;
    const char *name, *labels, *help;
} metric;

static const metric METRICS[IS_N_METRICS] = {
#define IS_X(id, kind, name, labels, help) { kind, name, labels, help },
    IS_METRICS_MAP(IS_X)
#undef IS_X
};

/* Upper bounds; +Inf is counted behind them. */
static const double SECONDS_LE[] = { .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300 };
static const double KL_LE[] = { 1e-6, 1e-5, 1e-4, 3e-4, .001, .003, .01, .03, .1, .3, 1, 3, 10 };

typedef struct series {
    char *labels[LABELS];            /* owned; NULL from the first that the metric has not */
    double value;                    /* counters, gauges; the sum of a histogram */
    uint64_t count, in[BUCKETS + 1]; /* histograms; not cumulative here */
    bool set;
} series;

typedef struct family {
    series *list;
    size_t n, cap;
    series other;                    /* what is beyond SERIES_MAX, or found no memory */
} family;

struct is_metrics {
    pthread_mutex_t lock;
    family families[IS_N_METRICS];
    char model[LABEL_BYTES];
};

/* From the start at zero, "first,second". */
static const struct { enum is_metric id; const char *value, *second; } FROM_THE_START[] = {
    { IS_M_TTFT, "kv", NULL },               { IS_M_TTFT, "text", NULL },             { IS_M_TTFT, "none", NULL },
    { IS_M_TPOT, "kv", NULL },               { IS_M_TPOT, "text", NULL },             { IS_M_TPOT, "none", NULL },
    { IS_M_E2E, "kv", NULL },                { IS_M_E2E, "text", NULL },              { IS_M_E2E, "none", NULL },
    { IS_M_FACTS, "stored", NULL },          { IS_M_FACTS, "computed", NULL },        { IS_M_FACTS, "resident", NULL },
    { IS_M_TOKENS_PROMPT, "computed", NULL }, { IS_M_TOKENS_PROMPT, "injected", NULL }, { IS_M_TOKENS_PROMPT, "resident", NULL },
    { IS_M_PLACEMENTS, "kept", NULL },       { IS_M_PLACEMENTS, "new", NULL },        { IS_M_PLACEMENTS, "lost", NULL },
    { IS_M_ENCODER_TURNS, "slice", NULL },   { IS_M_ENCODER_TURNS, "pause", NULL },   { IS_M_ENCODER_TURNS, "drop", NULL },
    { IS_M_EMBEDDER_FAILED, "failed", NULL }, { IS_M_EMBEDDER_FAILED, "spared", NULL },
    { IS_M_DAMAGED, "queued", NULL },        { IS_M_DAMAGED, "resting", NULL },       { IS_M_DAMAGED, "disputed", NULL },
    { IS_M_AUDITS, "done", NULL },           { IS_M_AUDITS, "skipped", NULL },        { IS_M_AUDITS, "failed", NULL },
    { IS_M_AUDIT_TOP1, "same", NULL },       { IS_M_AUDIT_TOP1, "different", NULL },
};

/* ---- The process --------------------------------------------------------------------------------------------------------- */

/* When it started: the kernel says it in ticks since boot. 0 = not known. */
static double process_start(void)
{
    FILE *f = fopen("/proc/self/stat", "r");
    char line[1024], *p = NULL;
    struct timespec now, up;
    double ticks = 0;

    if (f == NULL) return 0;
    if (fgets(line, sizeof line, f)) p = strrchr(line, ')'); /* behind the name, which may hold anything: fields 3 and on */
    fclose(f);
    for (int field = 2; p && field < 22; field++) p = strchr(p + 1, ' ');
    if (p) ticks = strtod(p, NULL);
    clock_gettime(CLOCK_REALTIME, &now);
    clock_gettime(CLOCK_BOOTTIME, &up);
    return ticks <= 0 ? 0 : (double)now.tv_sec - (double)up.tv_sec + ticks / (double)sysconf(_SC_CLK_TCK);
}

static double resident_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long long pages = 0;

    if (f == NULL) return 0;
    if (fscanf(f, "%*u %llu", &pages) != 1) pages = 0;
    fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static double open_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    double n = -3; /* ".", ".." and this one */

    if (d == NULL) return 0;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* ---- Series -------------------------------------------------------------------------------------------------------------- */

static size_t n_labels(enum is_metric id)
{
    const char *l = METRICS[id].labels;
    size_t n = *l != 0;

    for (; *l; l++) n += *l == ',';
    return n;
}

static bool is_histogram(kind k)
{
    return k == SECONDS || k == KL;
}

static const double *bounds(kind k, size_t *n)
{
    *n = k == KL ? sizeof KL_LE / sizeof *KL_LE : sizeof SECONDS_LE / sizeof *SECONDS_LE;
    return k == KL ? KL_LE : SECONDS_LE;
}

/* A label's value as it is kept: cut between characters, and valid UTF-8 whatever was given. */
static void tidy(const char *value, char out[LABEL_BYTES])
{
    snprintf(out, LABEL_BYTES, "%s", value ? value : "");
    out[is_utf8_whole(out, strlen(out))] = 0;
    if (!is_utf8_valid(out, strlen(out), NULL))
        for (char *p = out; *p; p++)
            if ((unsigned char)*p >= 0x80) *p = '?';
}

static void drop(series *s)
{
    for (size_t i = 0; i < LABELS; i++) is_free(s->labels[i]);
}

/* The series of these labels, made if it is new. The lock is held. */
static series *find(is_metrics *m, enum is_metric id, const char *const values[LABELS])
{
    family *f = &m->families[id];
    size_t n = n_labels(id);
    char tidied[LABELS][LABEL_BYTES];
    series s = { 0 };
    bool whole = true;

    for (size_t k = 0; k < n; k++) tidy(values[k], tidied[k]);
    for (size_t i = 0; i < f->n; i++) {
        size_t k = 0;

        while (k < n && strcmp(f->list[i].labels[k], tidied[k]) == 0) k++;
        if (k == n) return &f->list[i];
    }
    if (f->n == SERIES_MAX) return &f->other;
    if (f->n == f->cap) {
        size_t cap = f->cap ? 2 * f->cap : 4;
        series *more = is_realloc(f->list, cap * sizeof *more);

        if (more == NULL) return &f->other;
        f->list = more;
        f->cap = cap;
    }
    for (size_t k = 0; k < n; k++) whole = (s.labels[k] = is_strdup(tidied[k])) != NULL && whole;
    if (!whole) {
        drop(&s);
        return &f->other;
    }
    f->list[f->n] = s;
    return &f->list[f->n++];
}

is_status is_metrics_new(is_metrics **out)
{
    static const char *const none[LABELS] = { NULL, NULL, NULL };
    is_metrics *m = is_calloc(1, sizeof *m);

    *out = m;
    if (m == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the server's metrics");
    pthread_mutex_init(&m->lock, NULL);
    for (size_t i = 0; i < sizeof FROM_THE_START / sizeof *FROM_THE_START; i++) {
        const char *const values[LABELS] = { FROM_THE_START[i].value, FROM_THE_START[i].second, NULL };

        find(m, FROM_THE_START[i].id, values)->set = true;
    }
    for (unsigned i = 0; i <= INFERSCALE_N_FALLBACKS; i++) {
        const char *const values[LABELS] = { i < INFERSCALE_N_FALLBACKS ? inferscale_fallback_name(i) : "other", NULL, NULL };

        find(m, IS_M_FALLBACKS, values)->set = true;
    }
    for (int id = 0; id < IS_N_METRICS; id++)
        if (METRICS[id].kind != GAUGE && n_labels((enum is_metric)id) == 0) find(m, (enum is_metric)id, none)->set = true;
    if (process_start() > 0) is_metric_set(m, IS_M_START, NULL, NULL, process_start());
    return INFERSCALE_OK;
}

void is_metrics_free(is_metrics *m)
{
    if (m == NULL) return;
    for (int id = 0; id < IS_N_METRICS; id++) {
        for (size_t i = 0; i < m->families[id].n; i++) drop(&m->families[id].list[i]);
        is_free(m->families[id].list);
    }
    pthread_mutex_destroy(&m->lock);
    is_free(m);
}

void is_metric_add(is_metrics *m, enum is_metric id, const char *value, const char *second, double by)
{
    const char *const values[LABELS] = { value, second, NULL };
    series *s;

    if (m == NULL || is_histogram(METRICS[id].kind) || !isfinite(by) || (METRICS[id].kind == COUNTER && by < 0)) return;
    pthread_mutex_lock(&m->lock);
    s = find(m, id, values);
    s->value += by;
    s->set = true;
    pthread_mutex_unlock(&m->lock);
}

/* A counter that is set never falls. */
static void set(is_metrics *m, enum is_metric id, const char *const values[LABELS], double to)
{
    series *s;

    if (m == NULL || is_histogram(METRICS[id].kind) || !isfinite(to)) return;
    pthread_mutex_lock(&m->lock);
    s = find(m, id, values);
    if (METRICS[id].kind == GAUGE || to > s->value) s->value = to;
    s->set = true;
    pthread_mutex_unlock(&m->lock);
}

void is_metric_set(is_metrics *m, enum is_metric id, const char *value, const char *second, double to)
{
    const char *const values[LABELS] = { value, second, NULL };

    set(m, id, values, to);
}

void is_metrics_name(is_metrics *m, const char *version, const char *model, const char *engine)
{
    const char *const values[LABELS] = { version, model, engine };

    if (m == NULL) return;
    set(m, IS_M_BUILD, values, 1);
    pthread_mutex_lock(&m->lock);
    tidy(model, m->model);
    pthread_mutex_unlock(&m->lock);
}

void is_metric_observe(is_metrics *m, enum is_metric id, const char *value, double x)
{
    const char *const values[LABELS] = { value, NULL, NULL };
    const double *le;
    size_t n, b = 0;
    series *s;

    if (m == NULL || !is_histogram(METRICS[id].kind) || !isfinite(x)) return;
    le = bounds(METRICS[id].kind, &n);
    while (b < n && x > le[b]) b++;
    pthread_mutex_lock(&m->lock);
    s = find(m, id, values);
    s->in[b]++;
    s->count++;
    s->value += x;
    s->set = true;
    pthread_mutex_unlock(&m->lock);
}

/* ---- The text ------------------------------------------------------------------------------------------------------------ */

/* The shortest form that reads back as the same number. */
static void put_number(is_buf *b, double x)
{
    char text[40];

    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    is_buf_str(b, text);
}

static void put_escaped(is_buf *b, const char *value)
{
    for (; *value; value++) {
        if (*value == '\\' || *value == '"') is_buf_fmt(b, "\\%c", *value);
        else if (*value == '\n') is_buf_str(b, "\\n");
        else is_buf_add(b, value, 1);
    }
}

/* One line: name, labels by their comma-separated names, perhaps le, the number. labels ends early where a value is NULL. */
static void put_line(is_buf *b, const char *name, const char *suffix, const char *labels, const char *const values[LABELS],
                     const char *le, double x)
{
    const char *open = "{";

    is_buf_fmt(b, "%s%s", name, suffix);
    for (size_t k = 0; k < LABELS && *labels; k++) {
        size_t n = strcspn(labels, ",");

        is_buf_fmt(b, "%s%.*s=\"", open, (int)n, labels);
        put_escaped(b, values[k] ? values[k] : "");
        is_buf_str(b, "\"");
        open = ",";
        labels += n + (labels[n] == ',');
    }
    if (le) is_buf_fmt(b, "%sle=\"%s\"", open, le);
    is_buf_str(b, le || *open == ',' ? "} " : " ");
    put_number(b, x);
    is_buf_str(b, "\n");
}

static void put_head(is_buf *b, const char *name, kind k, const char *help)
{
    is_buf_fmt(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, k == COUNTER ? "counter" : k == GAUGE ? "gauge" : "histogram");
}

static void put_series(is_buf *b, const char *name, kind k, const char *labels, const char *const values[LABELS], const series *s)
{
    size_t n;
    const double *le = bounds(k, &n);
    uint64_t below = 0;
    char bound[32];

    if (!is_histogram(k)) {
        put_line(b, name, "", labels, values, NULL, s->value);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        below += s->in[i];
        snprintf(bound, sizeof bound, "%g", le[i]);
        put_line(b, name, "_bucket", labels, values, bound, (double)below);
    }
    put_line(b, name, "_bucket", labels, values, "+Inf", (double)s->count);
    put_line(b, name, "_sum", labels, values, NULL, s->value);
    put_line(b, name, "_count", labels, values, NULL, (double)s->count);
}

static void put_metric(is_buf *b, const is_metrics *m, int id)
{
    static const char *const other[LABELS] = { "other", "other", "other" };
    const family *f = &m->families[id];
    const metric *d = &METRICS[id];

    put_head(b, d->name, d->kind, d->help);
    for (size_t i = 0; i < f->n; i++)
        if (f->list[i].set) put_series(b, d->name, d->kind, d->labels, (const char *const *)f->list[i].labels, &f->list[i]);
    if (f->other.set) put_series(b, d->name, d->kind, d->labels, other, &f->other);
}

/* ---- vLLM's names -------------------------------------------------------------------------------------------------------- */

/* All series of a metric added up, or those whose first label has this value. */
static series sum_of(const is_metrics *m, enum is_metric id, const char *value)
{
    const family *f = &m->families[id];
    series sum = { 0 };

    for (size_t i = 0; i <= f->n; i++) {
        const series *s = i < f->n ? &f->list[i] : &f->other;

        if (value && (i == f->n || strcmp(s->labels[0], value) != 0)) continue;
        sum.value += s->value;
        sum.count += s->count;
        for (size_t k = 0; k <= BUCKETS; k++) sum.in[k] += s->in[k];
    }
    return sum;
}

/* What is the same thing here as there. What vLLM has and this server has not (swapping, a paged cache) is not made up. */
static const struct alias { const char *name; enum is_metric id; const char *value, *help; } ALIASES[] = {
    { "vllm:num_requests_running", IS_M_RUNNING, NULL, "Requests that the engine is working on" },
    { "vllm:num_requests_waiting", IS_M_WAITING, NULL, "Requests that wait for the engine" },
    { "vllm:time_to_first_token_seconds", IS_M_TTFT, NULL, "Question in to first token out, all modes" },
    { "vllm:request_time_per_output_token_seconds", IS_M_TPOT, NULL, "Between tokens of an answer, the mean of each answer" },
    { "vllm:e2e_request_latency_seconds", IS_M_E2E, NULL, "Question in to last token out" },
    { "vllm:prompt_tokens_total", IS_M_TOKENS_PROMPT, NULL, "Prompt tokens, whoever computed them" },
    { "vllm:generation_tokens_total", IS_M_TOKENS_ANSWER, NULL, "Tokens generated" },
    { "vllm:prefix_cache_queries_total", IS_M_TOKENS_PROMPT, NULL, "Prompt tokens looked for in the engine's cache" },
    { "vllm:prefix_cache_hits_total", IS_M_TOKENS_PROMPT, "resident", "Prompt tokens that the engine's cache held" },
};
static const char SUCCESS[] = "vllm:request_success_total";

static void put_aliases(is_buf *b, const is_metrics *m)
{
    static const char *const finished[][2] = { { "stop", "stop" }, { "length", "length" }, { "cancelled", "abort" } };
    const char *const named[LABELS] = { m->model, "0", NULL };

    for (size_t i = 0; i < sizeof ALIASES / sizeof *ALIASES; i++) {
        series sum = sum_of(m, ALIASES[i].id, ALIASES[i].value);
        kind k = METRICS[ALIASES[i].id].kind;

        put_head(b, ALIASES[i].name, k, ALIASES[i].help);
        put_series(b, ALIASES[i].name, k, "model_name,engine", named, &sum);
    }
    put_head(b, SUCCESS, COUNTER, "Answers by how they ended");
    for (size_t i = 0; i < sizeof finished / sizeof *finished; i++) {
        const char *const values[LABELS] = { m->model, "0", finished[i][1] };
        series sum = sum_of(m, IS_M_FINISHED, finished[i][0]);

        put_line(b, SUCCESS, "", "model_name,engine,finished_reason", values, NULL, sum.value);
    }
}

static void measure_process(is_metrics *m)
{
    struct timespec cpu;

    is_metric_set(m, IS_M_RSS, NULL, NULL, resident_bytes());
    is_metric_set(m, IS_M_FDS, NULL, NULL, open_files());
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0)
        is_metric_set(m, IS_M_CPU, NULL, NULL, (double)cpu.tv_sec + (double)cpu.tv_nsec * 1e-9);
}

char *is_metrics_text(is_metrics *m, bool aliases, size_t *len)
{
    is_buf b = IS_BUF_INIT;

    *len = 0;
    measure_process(m);
    pthread_mutex_lock(&m->lock);
    for (int id = 0; id < IS_N_METRICS; id++) put_metric(&b, m, id);
    if (aliases) put_aliases(&b, m);
    pthread_mutex_unlock(&m->lock);
    if (is_buf_ok(&b)) *len = b.len;
    return is_buf_take(&b);
}

const char *is_metric_name(int id)
{
    return id >= 0 && id < IS_N_METRICS ? METRICS[id].name : NULL;
}

static bool names(const char *series_name, const char *name, kind k)
{
    static const char *const suffixes[] = { "_bucket", "_sum", "_count" };
    size_t n = strlen(name);

    if (strncmp(series_name, name, n) != 0) return false;
    if (!is_histogram(k)) return series_name[n] == 0;
    for (size_t i = 0; i < 3; i++)
        if (strcmp(series_name + n, suffixes[i]) == 0) return true;
    return false;
}

bool is_metric_known(const char *series_name)
{
    for (int id = 0; id < IS_N_METRICS; id++)
        if (names(series_name, METRICS[id].name, METRICS[id].kind)) return true;
    for (size_t i = 0; i < sizeof ALIASES / sizeof *ALIASES; i++)
        if (names(series_name, ALIASES[i].name, METRICS[ALIASES[i].id].kind)) return true;
    return strcmp(series_name, SUCCESS) == 0;
}
