/* report_accuracy.c - plots of `eval accuracy`: from the lines of --results, which are summed up as
 * the command itself does (accuracy_rows.c), or from its --json. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "eval/accuracy.h"
#include "eval/report_parts.h"

/* ---- What both forms become ------------------------------------------------------------------ */

typedef struct right_row {
    const char *type, *arm;
    double k, n, right, lo, hi; /* shares */
    double difference;          /* against text, a share; NaN: none */
} right_row;

static const char *shown_type(const char *type)
{
    if (strcmp(type, "all") == 0) return "all types";
    return strcmp(type, "testable") == 0 ? "types that count" : type;
}

static is_status add_row(report *r, report_plot *p, const right_row *row)
{
    const int at = chart_row_of(&p->chart, shown_type(row->type));
    const chart_point point = { .x = at,
                                .value = 100 * row->right,
                                .lo = 100 * row->lo,
                                .hi = 100 * row->hi,
                                .n = row->n,
                                .more = { 100 * row->difference, NAN } };
    report_sum sum = { .section = REPORT_ACCURACY_K, .point = point, .head = p->heads[0] };

    IS_TRY(chart_add(&p->chart, row->arm, point));
    if (strcmp(row->type, "all") != 0 || !isfinite(row->k)) return INFERSCALE_OK;
    report_model(&r->heads[p->heads[0]], sum.group);
    report_copy(sum.series, sizeof sum.series, row->arm);
    sum.point.x = row->k;
    return report_sum_add(r, &sum);
}

/* of: the file, or its configuration. */
static is_status new_plot(report *r, size_t head, double k, double n, const json_t *of,
                          report_plot **out)
{
    const bool best_first = json_is_true(json_object_get(of, "best_first"));
    chart *c;
    char model[CHART_TEXT];

    IS_TRY(report_plot_new(r, REPORT_ACCURACY, head, out));
    report_model(&r->heads[head], model);
    c = &(*out)->chart;
    c->kind = CHART_DOTS;
    report_copy(c->id, sizeof c->id, r->heads[head].file);
    report_copy(c->title, sizeof c->title, "Right answers by type of question and arm");
    report_print(c->subtitle, sizeof c->subtitle, "%s; k = %.0f, %.0f %s questions%s", model, k, n,
                 report_text(of, "questions"), best_first ? ", best fact first" : "");
    report_copy(c->value.title, sizeof c->value.title, "right answers, %");
    report_copy(c->x.title, sizeof c->x.title, "type");
    report_copy(c->interval, sizeof c->interval, "95%, Wilson's");
    report_copy(c->more[0], sizeof c->more[0], "against text, points");
    return INFERSCALE_OK;
}

/* ---- The file of --results ------------------------------------------------------------------- */

typedef struct lines {
    const char *name; /* of the file */
    accuracy a;
    quiz quiz;
    char types[QUIZ_TYPES][64], policies[ACCURACY_ARMS][64];
    size_t number; /* of the line */
} lines;

static is_status bad(const lines *l, const char *what)
{
    return is_fail(INFERSCALE_E_PARSE,
                   "line %zu of %.200s %s; give a file that `eval accuracy --results` wrote",
                   l->number, l->name, what);
}

static accuracy_kind kind_of(const char *name)
{
    if (strcmp(name, "none") == 0) return ARM_NONE;
    if (strcmp(name, "text") == 0) return ARM_TEXT;
    if (strcmp(name, "plain") == 0) return ARM_PLAIN;
    if (strncmp(name, "injected ", 9) == 0) return ARM_INJECTED;
    return strncmp(name, "twin ", 5) == 0 ? ARM_TWIN : ARM_GOLD; /* one that is only described */
}

static is_status take_arms(lines *l, const json_t *arms)
{
    bool none = false, text = false;

    if (json_array_size(arms) < 1 || json_array_size(arms) > ACCURACY_ARMS)
        return bad(l, "names no arms, or too many");
    for (size_t i = 0; i < json_array_size(arms); i++) {
        const char *name = json_string_value(json_array_get(arms, i));
        accuracy_arm *arm = &l->a.arms[l->a.n_arms++];

        if (name == NULL) return bad(l, "has an arm without a name");
        *arm = (accuracy_arm){ .kind = kind_of(name), .policy = "" };
        report_copy(arm->name, sizeof arm->name, name);
        none = none || arm->kind == ARM_NONE;
        text = text || arm->kind == ARM_TEXT;
        if (arm->kind == ARM_TEXT) l->a.text = i;
    }
    return none && text ? INFERSCALE_OK : bad(l, "lacks the arm none or text");
}

static is_status take_type(lines *l, const char *type, uint32_t *out)
{
    for (*out = 0; *out < l->quiz.n_types; ++*out)
        if (strcmp(l->types[*out], type) == 0) return INFERSCALE_OK;
    if (type[0] == 0) return bad(l, "has no type");
    if (l->quiz.n_types == QUIZ_TYPES) return bad(l, "has one type too many");
    report_copy(l->types[*out], sizeof l->types[*out], type);
    if (strcmp(l->types[*out], type) != 0) return bad(l, "has a type with too long a name");
    l->quiz.types[l->quiz.n_types++] = l->types[*out];
    return INFERSCALE_OK;
}

static double at(const json_t *mark, size_t i)
{
    const json_t *v = json_array_get(mark, i);

    return json_is_number(v) ? json_number_value(v) : NAN;
}

static is_status take_question(lines *l, const json_t *line)
{
    const json_t *marks = json_object_get(line, "marks");
    accuracy_question *q, *more = is_realloc(l->a.questions, (l->a.n + 1) * sizeof *more);

    if (more == NULL) return report_no_memory();
    l->a.questions = more;
    q = &more[l->a.n];
    *q = (accuracy_question){ .recall = report_number(line, "recall") };
    IS_TRY(take_type(l, report_text(line, "type"), &q->type));
    if (json_array_size(marks) != l->a.n_arms) return bad(l, "has not one mark for each arm");
    for (size_t i = 0; i < l->a.n_arms; i++) {
        const json_t *mark = json_array_get(marks, i);

        q->marks[i] = (accuracy_mark){ .choice = -1, .judged = -1 };
        if (json_is_null(mark)) continue;
        if (isnan(at(mark, 0))) return bad(l, "has a mark that says neither right nor wrong");
        q->marks[i].asked = true;
        q->marks[i].right = at(mark, 0) != 0;
        q->marks[i].f1 = at(mark, 1);
        q->marks[i].nll = at(mark, 2);
    }
    l->a.n++;
    return INFERSCALE_OK;
}

static void take_head(report *r, size_t head, const json_t *o)
{
    report_head *h = &r->heads[head];
    const json_t *policies = json_object_get(o, "policies");
    const bool synthetic = strcmp(report_text(o, "questions"), "synthetic") == 0;
    char list[160] = "";

    report_head_read(h, o);
    for (size_t i = 0; i < json_array_size(policies); i++) {
        const char *s = json_string_value(json_array_get(policies, i));
        const size_t n = strlen(list);

        report_print(list + n, sizeof list - n, "%s%s", i ? "," : "", s ? s : "?");
    }
    report_print(h->command, sizeof h->command,
                 "inferscale eval accuracy --model MODEL %s--seed %s --k %.0f --policy %s %s%s%s"
                 "--results %s",
                 synthetic ? "" : "--data FILE ", h->seed, report_number(o, "k"), list,
                 json_is_false(json_object_get(o, "twins")) ? "--no-twins " : "",
                 json_is_true(json_object_get(o, "plain")) ? "--plain " : "",
                 json_is_true(json_object_get(o, "best_first")) ? "--best-first " : "", h->file);
}

static is_status take_line(lines *l, const json_t *line, json_t **configuration)
{
    if (!json_is_object(line)) return bad(l, "is no JSON object");
    if (l->number > 1) return take_question(l, line);
    *configuration = json_incref(json_object_get(line, "configuration"));
    if (!json_is_object(*configuration)) return bad(l, "says of no configuration");
    return take_arms(l, json_object_get(line, "arms"));
}

/* Whole lines; *torn = the last is not. */
static is_status read_lines(lines *l, const char *text, size_t n, json_t **configuration,
                            bool *torn)
{
    is_status st = INFERSCALE_OK;

    *torn = false;
    for (size_t from = 0; from < n && st == INFERSCALE_OK;) {
        const char *end = memchr(text + from, '\n', n - from);
        json_t *line;

        *torn = end == NULL;
        if (*torn) break;
        l->number++;
        line = json_loadb(text + from, (size_t)(end - text) - from, JSON_REJECT_DUPLICATES, NULL);
        st = take_line(l, line, configuration);
        json_decref(line);
        from = (size_t)(end - text) + 1;
    }
    if (st == INFERSCALE_OK && l->a.n_arms == 0) st = bad(l, "is cut off in its configuration");
    if (st == INFERSCALE_OK && l->a.n == 0)
        st = is_fail(INFERSCALE_E_PARSE,
                     "%.200s holds no question's result yet; let `eval accuracy` ask some",
                     l->name);
    return st;
}

static is_status plot_rows(report *r, report_plot *p, const accuracy_row *rows, size_t n, double k)
{
    for (size_t i = 0; i < n; i++) {
        const accuracy_row *row = &rows[i];
        const right_row one = { .type = row->type,
                                .arm = row->arm->name,
                                .k = k,
                                .n = (double)row->n,
                                .right = row->right,
                                .lo = row->right_i.lo,
                                .hi = row->right_i.hi,
                                .difference = row->has_text ? paired_difference(&row->text.counts)
                                                            : NAN };

        if (row->arm->kind == ARM_TWIN || row->n == 0) continue;
        IS_TRY(add_row(r, p, &one));
    }
    return INFERSCALE_OK;
}

static is_status plot_lines(report *r, size_t head, lines *l, const json_t *configuration)
{
    const accuracy_options o = { .quiz = &l->quiz, .rule = &paired_fixed };
    accuracy_row *rows = is_calloc(ACCURACY_ROWS, sizeof *rows);
    const double k = report_number(configuration, "k");
    report_plot *p;
    size_t n = 0;
    is_status st;

    if (rows == NULL) return report_no_memory();
    l->quiz.margin = 0.01;
    l->a.n_before = l->a.n;
    accuracy_rows(&l->a, &o, rows, &n);
    st = new_plot(r, head, k, (double)l->a.n, configuration, &p);
    if (st == INFERSCALE_OK) st = plot_rows(r, p, rows, n, k);
    is_free(rows);
    return st;
}

is_status report_accuracy_lines(report *r, size_t head, const char *text, size_t n)
{
    lines *l = is_calloc(1, sizeof *l);
    json_t *configuration = NULL;
    bool torn;
    is_status st;

    if (l == NULL) return report_no_memory();
    l->name = r->heads[head].file;
    st = read_lines(l, text, n, &configuration, &torn);
    if (st == INFERSCALE_OK) {
        take_head(r, head, configuration);
        if (torn)
            report_copy(r->heads[head].note, sizeof r->heads[head].note,
                        "its last line is torn and left out");
        st = plot_lines(r, head, l, configuration);
    }
    json_decref(configuration);
    is_free(l->a.questions);
    is_free(l);
    return st;
}

/* ---- The report of --json -------------------------------------------------------------------- */

static double bound(const json_t *row, size_t i)
{
    return at(json_object_get(row, "right_interval"), i);
}

is_status report_accuracy_rows(report *r, size_t head, const json_t *file)
{
    report_head *h = &r->heads[head];
    const json_t *rows = json_object_get(file, "rows");
    const double k = report_number(file, "k");
    report_plot *p;

    report_print(h->command, sizeof h->command,
                 "inferscale eval accuracy --model MODEL --seed %s --k %.0f --json", h->seed, k);
    IS_TRY(new_plot(r, head, k, report_number(file, "n"), file, &p));
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const right_row one = {
            .type = report_text(row, "type"), .arm = report_text(row, "arm"), .k = k,
            .n = report_number(row, "n"), .right = report_number(row, "right"),
            .lo = bound(row, 0), .hi = bound(row, 1),
            .difference = report_number(json_object_get(row, "against_text"), "difference") };

        if (one.type[0] == 0 || one.arm[0] == 0 || kind_of(one.arm) == ARM_TWIN) continue;
        IS_TRY(add_row(r, p, &one));
    }
    return INFERSCALE_OK;
}
