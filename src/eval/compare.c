/* compare.c - see compare.h. */
#include "eval/compare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { QUESTIONS_MAX = 1000000 };

static const char *const side_names[] = { "first", "second" };

typedef struct pair { size_t at[2]; uint32_t group; } pair;

typedef struct work {
    const json_t *report[2], *questions[2], *rows[2];
    pair *pairs;
    size_t n;
    uint32_t n_conversations;
    compare *c;
    double *column[4];        /* [n]: arm and reordering of the first, of the second */
    uint32_t *group;          /* [n] */
    uint64_t seed;
} work;

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory while comparing two reports; free some and try again");
}

static is_status no_report(int side, const char *what)
{
    return is_fail(INFERSCALE_E_PARSE, "the %s file %s; give two files that `inferscale eval fidelity --json` of this version wrote",
                   side_names[side], what);
}

/* ---- What a report holds ------------------------------------------------------------------------------------------------- */

static const char *text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

static is_status check_questions(int side, const json_t *questions)
{
    const json_t *q;
    size_t i;

    if (!json_is_array(questions) || json_array_size(questions) == 0 || json_array_size(questions) > QUESTIONS_MAX)
        return no_report(side, "does not list its questions");
    json_array_foreach(questions, i, q)
        if (!text(q, "conversation")[0] || !text(q, "prompts")[0] || !json_is_integer(json_object_get(q, "index")))
            return no_report(side, "has a question without its place or its hash");
    return INFERSCALE_OK;
}

static is_status check_rows(int side, const json_t *rows, size_t n)
{
    const json_t *row, *x;
    size_t i, k;

    if (!json_is_array(rows) || json_array_size(rows) == 0) return no_report(side, "has no rows");
    json_array_foreach(rows, i, row) {
        const json_t *each = json_object_get(row, "kl_each");

        if (!text(row, "arm")[0] || !text(row, "system")[0] || json_array_size(each) != n)
            return no_report(side, "has a row without a number for each question");
        json_array_foreach(each, k, x)
            if (!json_is_null(x) && !(json_is_number(x) && isfinite(json_number_value(x)) && json_number_value(x) >= 0))
                return no_report(side, "has a distance that is no number");
    }
    return INFERSCALE_OK;
}

static is_status check(work *w, int side)
{
    w->questions[side] = json_object_get(w->report[side], "questions");
    w->rows[side] = json_object_get(w->report[side], "rows");
    IS_TRY(check_questions(side, w->questions[side]));
    return check_rows(side, w->rows[side], json_array_size(w->questions[side]));
}

/* What must be the same of two runs, or their ratios are of different things. */
static is_status same_settings(const work *w)
{
    static const char *const keys[] = { "seed", "retrieval", "client_system", "answer_tokens", "orders" };

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *a = json_object_get(w->report[0], keys[i]), *b = json_object_get(w->report[1], keys[i]);

        if (a != b && !json_equal(a, b))
            return is_fail(INFERSCALE_E_INVALID, "the two runs differ in \"%s\"; give both the same options, and run one of them again",
                           keys[i]);
    }
    return INFERSCALE_OK;
}

/* ---- Pairs --------------------------------------------------------------------------------------------------------------- */

static bool same_place(const json_t *a, const json_t *b)
{
    return json_integer_value(json_object_get(a, "index")) == json_integer_value(json_object_get(b, "index")) &&
           strcmp(text(a, "conversation"), text(b, "conversation")) == 0;
}

/* Where the question stands in that list, `n` if nowhere, having looked at n. Lists are mostly in the same order: begins at `guess`. */
static size_t find(const json_t *list, const json_t *q, size_t guess)
{
    const size_t n = json_array_size(list);

    for (size_t i = 0; i < n; i++)
        if (same_place(json_array_get(list, (guess + i) % n), q)) return (guess + i) % n;
    return n;
}

static is_status missing(const json_t *q, int side)
{
    return is_fail(INFERSCALE_E_INVALID,
                   "question %lld of %.60s is not in the %s file; take those that both have by --common, or run it to its end",
                   (long long)json_integer_value(json_object_get(q, "index")), text(q, "conversation"), side_names[side]);
}

static is_status add_pair(work *w, size_t a, size_t b)
{
    const json_t *x = json_array_get(w->questions[0], a), *y = json_array_get(w->questions[1], b);
    uint32_t group = 0;

    if (strcmp(text(x, "prompts"), text(y, "prompts")) != 0)
        return is_fail(INFERSCALE_E_INVALID,
                       "question %lld of %.60s had other prompts: other facts, another order of them, or other tokens; compare runs of one "
                       "tokenizer, with the same policies and options, on stores that held nothing else",
                       (long long)json_integer_value(json_object_get(x, "index")), text(x, "conversation"));
    for (; group < w->n; group++)
        if (strcmp(text(json_array_get(w->questions[0], w->pairs[group].at[0]), "conversation"), text(x, "conversation")) == 0) break;
    group = group < w->n ? w->pairs[group].group : w->n_conversations++;
    w->pairs[w->n++] = (pair){ { a, b }, group };
    w->c->same_answer += text(x, "answer")[0] && strcmp(text(x, "answer"), text(y, "answer")) == 0;
    return INFERSCALE_OK;
}

/* Every question of the first file with its own in the second. */
static is_status make_pairs(work *w, bool common)
{
    const size_t n_a = json_array_size(w->questions[0]), n_b = json_array_size(w->questions[1]);
    const json_t *q;
    size_t i;

    w->pairs = is_malloc((n_a < n_b ? n_a : n_b) * sizeof *w->pairs + sizeof *w->pairs);
    if (!w->pairs) return no_memory();
    json_array_foreach(w->questions[0], i, q) {
        const size_t at = find(w->questions[1], q, i < n_b ? i : 0);

        if (find(w->questions[0], q, 0) != i) return no_report(0, "has a question twice");
        if (at == n_b && !common) return missing(q, 1);
        if (at == n_b) w->c->only_a++;
        else IS_TRY(add_pair(w, i, at));
    }
    json_array_foreach(w->questions[1], i, q) {
        if (find(w->questions[1], q, 0) != i) return no_report(1, "has a question twice");
        if (find(w->questions[0], q, i < n_a ? i : 0) < n_a) continue;
        if (!common) return missing(q, 0);
        w->c->only_b++;
    }
    if (w->n == 0) return is_fail(INFERSCALE_E_INVALID, "the two files have no question in common; run both on the same data");
    w->c->by_conversation = w->n_conversations > 1;
    return INFERSCALE_OK;
}

/* ---- Rows ---------------------------------------------------------------------------------------------------------------- */

static bool injects(const json_t *row)
{
    return json_is_string(json_object_get(row, "policy"));
}

/* The row of that arm in a report; NULL if there is none. */
static const json_t *row_like(const json_t *rows, const char *arm, const json_t *like)
{
    const json_t *row;
    size_t i;

    json_array_foreach(rows, i, row) {
        if (strcmp(text(row, "arm"), arm) != 0 || strcmp(text(row, "system"), text(like, "system")) != 0) continue;
        if (!injects(row)) return row;
        if (strcmp(text(row, "policy"), text(like, "policy")) == 0 && json_equal(json_object_get(row, "k"), json_object_get(like, "k")) &&
            json_equal(json_object_get(row, "repair"), json_object_get(like, "repair")))
            return row;
    }
    return NULL;
}

static double each(const json_t *row, size_t at)
{
    const json_t *x = json_array_get(json_object_get(row, "kl_each"), at);

    return json_is_number(x) ? json_number_value(x) : NAN;
}

/* Is the yardstick well above the floor, in the pairs where that was measured? As in a report of its own. */
static bool stands_out(const work *w, int side, const json_t *order, const json_t *like)
{
    const json_t *floor = row_like(w->rows[side], "N", like);
    double sum = 0, sum_order = 0;
    size_t n = 0;

    for (size_t i = 0; floor && i < w->n; i++) {
        double x = each(floor, w->pairs[i].at[side]);

        sum_order += each(order, w->pairs[i].at[side]);
        if (!isnan(x)) sum += x, n++;
    }
    return n > 0 && sum_order / (double)w->n > 5 * sum / (double)n;
}

static is_status fill(work *w, const json_t *const arm[2], const json_t *const order[2])
{
    for (size_t i = 0; i < w->n; i++) {
        w->group[i] = w->pairs[i].group;
        for (int side = 0; side < 2; side++) {
            w->column[2 * side][i] = each(arm[side], w->pairs[i].at[side]);
            w->column[2 * side + 1][i] = each(order[side], w->pairs[i].at[side]);
            if (isnan(w->column[2 * side][i]) || isnan(w->column[2 * side + 1][i]))
                return no_report(side, "lacks a distance of an arm that is compared");
        }
    }
    return INFERSCALE_OK;
}

static is_status measure(work *w, compare_row *row)
{
    double *const *c = w->column;
    const uint32_t *group = w->n_conversations > 1 ? w->group : NULL; /* as in a report of its own */
    const size_t groups = w->n_conversations;

    row->kl_a = stats_mean(c[0], w->n);
    row->order_a = stats_mean(c[1], w->n);
    row->kl_b = stats_mean(c[2], w->n);
    row->order_b = stats_mean(c[3], w->n);
    if (row->is_void) return INFERSCALE_OK;
    row->a = row->kl_a / row->order_a;
    row->b = row->kl_b / row->order_b;
    row->difference = row->a - row->b;
    IS_TRY(stats_bootstrap(c[0], c[1], w->n, group, groups, STATS_RESAMPLES, w->seed, &row->a_i));
    IS_TRY(stats_bootstrap(c[2], c[3], w->n, group, groups, STATS_RESAMPLES, w->seed, &row->b_i));
    return stats_bootstrap_difference(c[0], c[1], c[2], c[3], w->n, group, groups, STATS_RESAMPLES, w->seed, &row->difference_i);
}

/* One injecting arm against one yardstick, if both reports have that. */
static is_status compare_arm(work *w, const json_t *like, const char *yardstick)
{
    const json_t *arm[2] = { like, row_like(w->rows[1], text(like, "arm"), like) }, *order[2];
    compare_row *row = &w->c->rows[w->c->n_rows];

    for (int side = 0; side < 2; side++) order[side] = row_like(w->rows[side], yardstick, like);
    if (!order[0] && !order[1]) return INFERSCALE_OK; /* left out of both */
    if (!order[0] || !order[1]) return is_fail(INFERSCALE_E_INVALID, "only the %s file has the arm %s; run both with the same --skip",
                                               side_names[order[1] != NULL], yardstick);
    *row = (compare_row){ .arm = text(like, "arm"), .system = text(like, "system"), .policy = text(like, "policy"),
                          .repair = (int)json_integer_value(json_object_get(like, "repair")), .yardstick = yardstick, .a = NAN, .b = NAN,
                          .difference = NAN, .a_i = { NAN, NAN }, .b_i = { NAN, NAN }, .difference_i = { NAN, NAN } };
    IS_TRY(fill(w, arm, order));
    row->is_void = !stands_out(w, 0, order[0], like) || !stands_out(w, 1, order[1], like);
    w->c->n_rows++;
    return measure(w, row);
}

/* Both must have the same arms with the same policies, k and repairs. */
static is_status same_arms(const work *w, int side)
{
    const json_t *row;
    size_t i;

    json_array_foreach(w->rows[side], i, row) {
        if (!injects(row) || row_like(w->rows[!side], text(row, "arm"), row)) continue;
        return is_fail(INFERSCALE_E_INVALID,
                       "the %s file has no policy %.40s (arm %.12s, k %lld, repair %lld); run both with the same --policy, --k and --repair",
                       side_names[!side], text(row, "policy"), text(row, "arm"), (long long)json_integer_value(json_object_get(row, "k")),
                       (long long)json_integer_value(json_object_get(row, "repair")));
    }
    return INFERSCALE_OK;
}

static is_status make_rows(work *w)
{
    const size_t n_rows = json_array_size(w->rows[0]);
    const json_t *row;
    size_t i;

    w->c->rows = is_calloc(2 * n_rows, sizeof *w->c->rows);
    w->group = is_malloc(w->n * sizeof *w->group);
    w->column[0] = is_malloc(4 * w->n * sizeof(double));
    if (!w->c->rows || !w->group || !w->column[0]) return no_memory();
    for (size_t k = 1; k < 4; k++) w->column[k] = w->column[0] + k * w->n;
    json_array_foreach(w->rows[0], i, row) {
        if (!injects(row)) continue;
        IS_TRY(compare_arm(w, row, "S_free"));
        IS_TRY(compare_arm(w, row, "S"));
    }
    if (w->c->n_rows > 0) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_INVALID, "there is no order ratio in these files: nothing was injected, or --skip left the reorderings out");
}

is_status compare_reports(const json_t *a, const json_t *b, bool common, uint64_t seed, compare **out)
{
    work w = { .report = { a, b }, .c = is_calloc(1, sizeof *w.c), .seed = seed };
    is_status st = w.c ? INFERSCALE_OK : no_memory();

    *out = NULL;
    for (int side = 0; side < 2 && st == INFERSCALE_OK; side++) st = check(&w, side);
    if (st == INFERSCALE_OK) st = same_settings(&w);
    for (int side = 0; side < 2 && st == INFERSCALE_OK; side++) st = same_arms(&w, side);
    if (st == INFERSCALE_OK) st = make_pairs(&w, common);
    if (st == INFERSCALE_OK) st = make_rows(&w);
    if (st == INFERSCALE_OK) w.c->n = w.n;
    is_free(w.pairs);
    is_free(w.group);
    is_free(w.column[0]);
    if (st == INFERSCALE_OK) *out = w.c;
    else compare_free(w.c);
    return st;
}

void compare_free(compare *c)
{
    if (!c) return;
    is_free(c->rows);
    is_free(c);
}
