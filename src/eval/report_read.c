/* report_read.c - recognises a file by what it holds, and reads what all of them say. */
#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "eval/report_parts.h"

enum { FILE_MOST = 256 << 20, ROWS_MOST = 4096 };

/* ---- Values ---------------------------------------------------------------------------------- */

double report_number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    return json_is_number(v) ? json_number_value(v) : NAN;
}

const char *report_text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

void report_copy(char *out, size_t cap, const char *s)
{
    size_t n = strlen(s);

    if (n >= cap) {
        n = cap - 1;
        while (n > 0 && ((unsigned char)s[n] & 0xC0) == 0x80) n--;
    }
    memmove(out, s, n);
    out[n] = 0;
}

/* A number that the file does not say: as a question mark, not as the C library's "nan". */
static void mark_unknown(char *line)
{
    for (char *at = line; (at = strstr(at, "nan")) != NULL;) {
        const bool word = (at == line || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[3]);

        if (word && at > line && at[-1] == '-' && (at - 1 == line || at[-2] == ' ')) at--;
        if (word) {
            const size_t n = *at == '-' ? 4 : 3;

            *at = '?';
            memmove(at + 1, at + n, strlen(at + n) + 1);
        }
        at += word ? 1 : 3;
    }
}

void report_print(char *out, size_t cap, const char *fmt, ...)
{
    char line[2048];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    mark_unknown(line);
    report_copy(out, cap, line);
}

void report_head_read(report_head *h, const json_t *o)
{
    const json_t *model = json_object_get(json_object_get(o, "server"), "model");
    const double seed = report_number(o, "seed");

    report_copy(h->model, sizeof h->model, report_text(o, "model"));
    report_copy(h->weights, sizeof h->weights, report_text(o, "weights"));
    if (h->weights[0] == 0)
        report_copy(h->weights, sizeof h->weights, report_text(model, "weights"));
    report_copy(h->engine, sizeof h->engine, report_text(o, "engine"));
    if (h->engine[0] == 0) report_copy(h->engine, sizeof h->engine, report_text(model, "engine"));
    report_copy(h->machine, sizeof h->machine, report_text(o, "machine"));
    report_copy(h->commit, sizeof h->commit, report_text(o, "commit"));
    report_copy(h->date, sizeof h->date, report_text(o, "date"));
    if (isfinite(seed)) report_print(h->seed, sizeof h->seed, "%.0f", seed);
}

void report_model(const report_head *h, char out[CHART_TEXT])
{
    const char *file = strstr(h->model, " (");
    const int n = file ? (int)(file - h->model) : (int)strlen(h->model);

    report_print(out, CHART_TEXT, "%.*s%s%s", n, n ? h->model : "model not said",
                 h->weights[0] ? ", " : "", h->weights);
    if (n == 0)
        report_print(out, CHART_TEXT, "model not said%s%s", h->weights[0] ? ", " : "", h->weights);
}

void report_model_option(const report_head *h, char out[CHART_TEXT])
{
    const char *file = strstr(h->model, " (");
    const size_t n = file ? strcspn(file + 2, ") ") : 0;

    out[0] = 0;
    if (n) report_print(out, CHART_TEXT, "--model %.*s ", (int)n, file + 2);
}

void report_subtitle(const report_head *h, char out[CHART_TEXT])
{
    char model[CHART_TEXT];

    report_model(h, model);
    report_print(out, CHART_TEXT, "%s%s%s", model, h->machine[0] ? "; " : "", h->machine);
}

/* ---- Which file it is ------------------------------------------------------------------------ */

static bool has(const json_t *o, const char *key) { return json_object_get(o, key) != NULL; }

typedef is_status (*reader)(report *r, size_t head, const json_t *file);

/* NULL: no result that a plot is made of. */
static reader reader_of(const json_t *file)
{
    const json_t *row = json_array_get(json_object_get(file, "rows"), 0);

    if (!json_is_object(row)) return NULL;
    if (has(file, "a") && has(file, "b") && has(row, "ratio_a")) return report_compare;
    if (has(row, "arm") && has(row, "kl_mean")) return report_fidelity;
    if (has(row, "mode") && has(row, "request_throughput")) return report_serve;
    if (has(row, "k") && has(row, "text_ms") && has(row, "injected_ms")) return report_ttft;
    if (has(row, "method") && has(row, "categories") && has(row, "recall")) return report_recall;
    if (has(row, "type") && has(row, "arm") && has(row, "right")) return report_accuracy_rows;
    return NULL;
}

static is_status foreign(const char *name)
{
    return is_fail(INFERSCALE_E_INVALID,
                   "%.200s is JSON, but no result that a plot is made of; give results of `eval "
                   "accuracy`, `eval fidelity`, `eval compare`, `eval recall`, `bench ttft` or "
                   "`bench serve` (with --json)",
                   name);
}

static is_status read_json(report *r, size_t head, const char *name, const char *text, size_t n)
{
    json_error_t e;
    json_t *file = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    const reader read = reader_of(file);
    is_status st;

    if (file == NULL)
        st = is_fail(INFERSCALE_E_PARSE, "%.200s is no JSON: line %d: %.120s", name, e.line,
                     e.text);
    else if (read == NULL) st = foreign(name);
    else if (json_array_size(json_object_get(file, "rows")) > ROWS_MOST)
        st = is_fail(INFERSCALE_E_INVALID, "%.200s has more than %d rows; give fewer", name,
                     (int)ROWS_MOST);
    else {
        report_head_read(&r->heads[head], file);
        st = read(r, head, file);
    }
    json_decref(file);
    return st;
}

/* Does the first line say that results of `eval accuracy` follow? */
static bool is_lines(const char *text, size_t n)
{
    static const char mark[] = "{\"results\":";

    return n >= sizeof mark - 1 && memcmp(text, mark, sizeof mark - 1) == 0;
}

is_status report_add_text(report *r, const char *name, const void *text, size_t n)
{
    const char *base = strrchr(name, '/');
    report_head *more = is_realloc(r->heads, (r->n_heads + 1) * sizeof *more);
    size_t blank = 0;
    is_status st;

    if (more == NULL) return report_no_memory();
    r->heads = more;
    more[r->n_heads] = (report_head){ 0 };
    report_copy(more[r->n_heads].file, sizeof more->file, base ? base + 1 : name);
    while (blank < n && strchr(" \t\r\n", ((const char *)text)[blank]) != NULL) blank++;
    if (blank == n)
        return is_fail(INFERSCALE_E_PARSE, "%.200s is empty; run the command that writes it again",
                       name);
    st = is_lines(text, n) ? report_accuracy_lines(r, r->n_heads, text, n)
                           : read_json(r, r->n_heads, name, text, n);
    r->n_heads++;
    return st;
}

is_status report_add(report *r, const char *path)
{
    uint8_t *text = NULL;
    size_t n = 0;
    is_status st;

    IS_TRY(is_file_read_all(is_fs_posix(), path, FILE_MOST, &text, &n));
    st = report_add_text(r, path, text, n);
    is_free(text);
    return st;
}
