/* accuracy_rows.c - from the marks of all questions to what is reported, and what the rule says. */
#include "eval/accuracy.h"

#include <math.h>
#include <string.h>

const double accuracy_testable = 0.2;
static const double z95 = 1.959964;

enum { EVERY = QUIZ_TYPES, TESTABLE /* instead of a type */ };

/* Which questions: those of one type, all, or those of types that count. */
typedef struct choice {
    uint32_t type;
    bool counts[QUIZ_TYPES];
} choice;

static bool is_chosen(const choice *c, const accuracy_question *q)
{
    return c->type == EVERY || (c->type == TESTABLE ? c->counts[q->type] : c->type == q->type);
}

static size_t arm_of(const accuracy *a, accuracy_kind kind)
{
    for (size_t i = 0; i < a->n_arms; i++)
        if (a->arms[i].kind == kind) return i;
    return a->n_arms;
}

/* Which types count, by the first n questions. */
static void find_testable(const accuracy *a, size_t n, bool counts[QUIZ_TYPES])
{
    const size_t none = arm_of(a, ARM_NONE);
    double gain[QUIZ_TYPES] = { 0 };
    size_t of[QUIZ_TYPES] = { 0 };

    for (size_t i = 0; i < n; i++) {
        const accuracy_question *q = &a->questions[i];

        gain[q->type] += (double)q->marks[a->text].right - (double)q->marks[none].right;
        of[q->type]++;
    }
    for (size_t t = 0; t < QUIZ_TYPES; t++)
        counts[t] = of[t] > 0 && gain[t] / (double)of[t] >= accuracy_testable - 1e-9;
}

static paired_counts count(const accuracy *a, size_t n, const choice *c, size_t ref, size_t arm)
{
    paired_counts p = { 0 };

    for (size_t i = 0; i < n; i++) {
        const accuracy_mark *x = &a->questions[i].marks[ref], *y = &a->questions[i].marks[arm];

        if (!is_chosen(c, &a->questions[i]) || !x->asked || !y->asked) continue;
        p.n++;
        p.lost += x->right && !y->right;
        p.won += !x->right && y->right;
    }
    return p;
}

/* By the first n questions alone. */
static paired_verdict look(const accuracy *a, const accuracy_options *o, size_t n, uint32_t type,
                           size_t ref, size_t arm)
{
    const paired_rule *rule = o->rule ? o->rule : &paired_fixed;
    choice c = { .type = type };
    paired_counts p;

    find_testable(a, n, c.counts);
    if (type < QUIZ_TYPES && !c.counts[type]) return PAIRED_OPEN;
    p = count(a, n, &c, ref, arm);
    return paired_look(&p, o->quiz->margin, rule->bound);
}

/* The first look that decides; *at = the questions then. */
static paired_verdict decide(const accuracy *a, const accuracy_options *o, uint32_t type,
                             size_t ref, size_t arm, size_t *at)
{
    const paired_rule *rule = o->rule ? o->rule : &paired_fixed;
    paired_verdict v = PAIRED_OPEN;

    *at = 0;
    if (rule->n_looks == 0 && a->complete) {
        v = look(a, o, a->n, type, ref, arm);
        *at = v == PAIRED_OPEN ? 0 : a->n;
    }
    for (size_t i = 0; i < rule->n_looks && rule->looks[i] <= a->n && v == PAIRED_OPEN; i++) {
        v = look(a, o, (size_t)rule->looks[i], type, ref, arm);
        *at = v == PAIRED_OPEN ? 0 : (size_t)rule->looks[i];
    }
    return v;
}

bool accuracy_decided(const accuracy *a, const accuracy_options *o)
{
    size_t at;

    if (o->rule == NULL || o->rule->n_looks == 0) return false;
    for (size_t i = 0; i < a->n_arms; i++)
        if (a->arms[i].kind == ARM_INJECTED &&
            decide(a, o, TESTABLE, a->text, i, &at) == PAIRED_OPEN)
            return false;
    return true;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static stats_interval wilson(double share, size_t n)
{
    const double m = (double)n, zz = z95 * z95, middle = share + zz / (2 * m);
    const double half = z95 * sqrt(share * (1 - share) / m + zz / (4 * m * m));

    if (n == 0) return (stats_interval){ NAN, NAN };
    return (stats_interval){ (middle - half) / (1 + zz / m), (middle + half) / (1 + zz / m) };
}

/* A mean of what there is. */
typedef struct mean {
    double sum;
    size_t n;
} mean;

static void add(mean *m, double x)
{
    if (!isfinite(x)) return;
    m->sum += x;
    m->n++;
}

static double value(const mean *m) { return m->n ? m->sum / (double)m->n : NAN; }

static void describe(const accuracy *a, const choice *c, size_t arm, accuracy_row *row)
{
    mean right = { 0 }, f1 = { 0 }, nll = { 0 }, chosen = { 0 }, recall = { 0 }, judged = { 0 };

    for (size_t i = 0; i < a->n; i++) {
        const accuracy_question *q = &a->questions[i];
        const accuracy_mark *m = &q->marks[arm];

        if (!is_chosen(c, q) || !m->asked) continue;
        add(&right, m->right);
        add(&f1, m->f1);
        add(&nll, m->nll);
        if (m->choice >= 0) add(&chosen, m->choice);
        if (m->judged >= 0) add(&judged, m->judged);
        add(&recall, q->recall);
    }
    row->n = right.n;
    row->right = value(&right);
    row->right_i = wilson(row->right, row->n);
    row->f1 = value(&f1);
    row->nll = value(&nll);
    row->choice = value(&chosen);
    row->judged = value(&judged);
    row->n_judged = judged.n;
    row->recall = value(&recall);
}

static void compare(const accuracy *a, const accuracy_options *o, const choice *c, size_t ref,
                    size_t arm, accuracy_against *out)
{
    out->counts = count(a, a->n, c, ref, arm);
    out->interval = paired_interval(&out->counts, z95);
    out->p = paired_mcnemar(&out->counts);
    out->verdict = decide(a, o, c->type, ref, arm, &out->decided_at);
}

static size_t twin_of(const accuracy *a, size_t arm)
{
    for (size_t i = 0; i < a->n_arms; i++)
        if (a->arms[i].kind == ARM_TWIN && a->arms[i].policy == a->arms[arm].policy) return i;
    return a->n_arms;
}

static void fill(const accuracy *a, const accuracy_options *o, const choice *c, size_t arm,
                 accuracy_row *row)
{
    const size_t twin = twin_of(a, arm);

    *row = (accuracy_row){ .arm = &a->arms[arm] };
    row->type = c->type == EVERY      ? "all"
                : c->type == TESTABLE ? "testable"
                                      : o->quiz->types[c->type];
    row->testable = c->type == TESTABLE || (c->type != EVERY && c->counts[c->type]);
    describe(a, c, arm, row);
    if (a->arms[arm].kind != ARM_INJECTED && a->arms[arm].kind != ARM_PLAIN) return;
    row->has_text = true;
    compare(a, o, c, a->text, arm, &row->text);
    row->has_twin = twin < a->n_arms;
    if (row->has_twin) compare(a, o, c, twin, arm, &row->twin);
}

void accuracy_rows(const accuracy *a, const accuracy_options *o, accuracy_row *rows, size_t *n)
{
    choice c = { 0 };
    bool some = false;

    *n = 0;
    find_testable(a, a->n, c.counts);
    for (size_t t = 0; t < QUIZ_TYPES; t++) some = some || c.counts[t];
    for (c.type = 0; c.type <= TESTABLE; c.type++) {
        if (c.type < QUIZ_TYPES ? c.type >= o->quiz->n_types : c.type == TESTABLE && !some)
            continue;
        for (size_t arm = 0; arm < a->n_arms; arm++) fill(a, o, &c, arm, &rows[(*n)++]);
    }
}
