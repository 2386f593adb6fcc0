/* eval_accuracy_print.c - what `eval accuracy` prints. */
#include "cli/eval_accuracy.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/args.h"
#include "cli/out.h"

static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

/* "first", "refine": of the two default stages; NULL = another policy. */
static const char *stage_of(const accuracy_arm *arm)
{
    if (strcmp(arm->policy, IS_DEFAULT_POLICY) == 0) return "first";
    return strcmp(arm->policy, "F1:" IS_DEFAULT_REFINE) == 0 ? "refine" : NULL;
}

static const char *verdict_name(const accuracy_row *row, const accuracy_against *a)
{
    if (strcmp(row->type, "all") != 0 && !row->testable) return "not testable";
    switch (a->verdict) {
    case PAIRED_WORSE: return "worse";
    case PAIRED_NO_WORSE: return "no worse";
    case PAIRED_EQUAL: return "equal";
    case PAIRED_OPEN: break;
    }
    return "open";
}

/* ---- A table --------------------------------------------------------------------------------- */

static void plain(char out[16], double x)
{
    if (isnan(x)) snprintf(out, 16, "-");
    else snprintf(out, 16, "%.3f", x);
}

static void percent(char out[16], double x)
{
    if (isnan(x)) snprintf(out, 16, "-");
    else snprintf(out, 16, "%.1f", x > 0 ? 100 * x : 0);
}

static void print_against(const accuracy_row *row, const accuracy_against *a)
{
    char range[32];

    snprintf(range, sizeof range, "[%+.1f, %+.1f]", 100 * a->interval.lo, 100 * a->interval.hi);
    printf("  %+6.1f %-16s %4llu/%-4llu %7.4f  %s", 100 * paired_difference(&a->counts), range,
           (unsigned long long)a->counts.lost, (unsigned long long)a->counts.won, a->p,
           verdict_name(row, a));
    if (a->decided_at) printf(" (at %zu)", a->decided_at);
}

static void print_row(const accuracy_row *row, bool first)
{
    char right[16], lo[16], hi[16], choice[16], judged[16], f1[16], nll[16], range[40];

    percent(right, row->right);
    percent(lo, row->right_i.lo);
    percent(hi, row->right_i.hi);
    percent(choice, row->choice);
    percent(judged, row->judged);
    plain(f1, row->f1);
    plain(nll, row->nll);
    snprintf(range, sizeof range, "[%s, %s]", lo, hi);
    printf("%-11s %-24s %5zu %6s %-14s %6s %6s %6s %7s", first ? row->type : "", row->arm->name,
           row->n, right, range, choice, judged, f1, nll);
    if (row->has_text) print_against(row, &row->text);
    printf("\n");
    if (row->has_twin) {
        printf("%-11s %-24s %5s %6s %-14s %6s %6s %6s %7s", "", "  against its twin", "", "", "",
               "", "", "", "");
        print_against(row, &row->twin);
        printf("\n");
    }
}

static void print_reading(const accuracy_options *o)
{
    printf(
        "\nright: percent of answers [95%%]; choice: percent whose likeliest choice is the right "
        "one;\n"
        "judge: percent that it calls right; NLL: of the right answer, nats a token. Against "
        "text:\n"
        "difference in points [95%%], questions lost and won, exact McNemar, and the verdict at a\n"
        "margin of %.0f %s. A type counts where text is right in %.0f points more than no "
        "memory.\n",
        100 * o->quiz->margin, o->quiz->margin > 0.011 ? "points" : "point",
        100 * accuracy_testable);
}

void accuracy_print_table(const inferscale_model_info *info, const accuracy_options *o,
                          const accuracy *a)
{
    accuracy_row *rows = is_calloc(ACCURACY_ROWS, sizeof *rows);
    char shown[192];
    size_t n = 0;

    if (rows) accuracy_rows(a, o, rows, &n);
    printf("%s %s: %zu questions (%s, seed %llu)%s, %u facts each\n\n",
           cli_model_shown(info, shown), info->weights, a->n, o->quiz->name,
           (unsigned long long)o->quiz->seed, a->complete ? "" : ", stopped early", o->k);
    printf("%-11s %-24s %5s %6s %-14s %6s %6s %6s %7s  %6s %-16s %9s %7s  %s\n", "type", "arm", "n",
           "right", "[95%]", "choice", "judge", "F1", "NLL", "- text", "[95%]", "lost/won", "p",
           "verdict");
    for (size_t i = 0; i < n; i++)
        if (rows[i].n > 0)
            print_row(&rows[i], i == 0 || strcmp(rows[i].type, rows[i - 1].type) != 0);
    print_reading(o);
    is_free(rows);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *interval(stats_interval i)
{
    json_t *list = json_array();

    json_array_append_new(list, number(i.lo));
    json_array_append_new(list, number(i.hi));
    return list;
}

static json_t *against_json(const accuracy_row *row, const accuracy_against *a)
{
    return json_pack("{s:I,s:o,s:o,s:I,s:I,s:o,s:s,s:I}", "n", (json_int_t)a->counts.n,
                     "difference", number(paired_difference(&a->counts)), "interval",
                     interval(a->interval), "lost", (json_int_t)a->counts.lost, "won",
                     (json_int_t)a->counts.won, "mcnemar_p", number(a->p), "verdict",
                     verdict_name(row, a), "decided_at", (json_int_t)a->decided_at);
}

static json_t *row_json(const accuracy_row *row)
{
    const char *stage = stage_of(row->arm);
    json_t *j =
        json_pack("{s:s,s:b,s:s,s:s,s:o,s:I}", "type", row->type, "testable", (int)row->testable,
                  "arm", row->arm->name, "policy", row->arm->policy, "stage",
                  stage ? json_string(stage) : json_null(), "n", (json_int_t)row->n);

    json_object_set_new(j, "right", number(row->right));
    json_object_set_new(j, "right_interval", interval(row->right_i));
    json_object_set_new(j, "choice", number(row->choice));
    json_object_set_new(j, "f1", number(row->f1));
    json_object_set_new(j, "judged", number(row->judged));
    json_object_set_new(j, "n_judged", json_integer((json_int_t)row->n_judged));
    json_object_set_new(j, "gold_nll", number(row->nll));
    json_object_set_new(j, "recall", number(row->recall));
    json_object_set_new(j, "against_text",
                        row->has_text ? against_json(row, &row->text) : json_null());
    json_object_set_new(j, "against_twin",
                        row->has_twin ? against_json(row, &row->twin) : json_null());
    return j;
}

static json_t *rule_json(const accuracy_options *o)
{
    json_t *looks = json_array();

    for (size_t i = 0; i < o->rule->n_looks; i++)
        json_array_append_new(looks, json_integer((json_int_t)o->rule->looks[i]));
    return json_pack("{s:f,s:f,s:f,s:f,s:o}", "margin", o->quiz->margin, "alpha", o->rule->alpha,
                     "bound", o->rule->bound, "testable", accuracy_testable, "looks", looks);
}

int accuracy_print_json(const inferscale_model_info *info, const accuracy_options *o,
                        const accuracy *a)
{
    accuracy_row *rows = is_calloc(ACCURACY_ROWS, sizeof *rows);
    json_t *report = cli_report(info, o->quiz->seed), *list = json_object_get(report, "rows");
    size_t n = 0;

    if (rows) accuracy_rows(a, o, rows, &n);
    json_object_set_new(report, "questions", json_string(o->quiz->name));
    json_object_set_new(report, "n", json_integer((json_int_t)a->n));
    json_object_set_new(report, "n_before", json_integer((json_int_t)a->n_before));
    json_object_set_new(report, "complete", json_boolean(a->complete));
    json_object_set_new(report, "k", json_integer(o->k));
    json_object_set_new(report, "answer_tokens", json_integer(o->n_tokens));
    json_object_set_new(report, "engine", cli_json_text(info->engine));
    json_object_set_new(report, "flash_attention", json_boolean(info->flash_attention));
    if (o->best_first) json_object_set_new(report, "best_first", json_true());
    json_object_set_new(report, "rule", rule_json(o));
    for (size_t i = 0; i < n; i++) json_array_append_new(list, row_json(&rows[i]));
    is_free(rows);
    return cli_print_json(report);
}

/* ---- Questions ------------------------------------------------------------------------------- */

static json_t *texts_json(char *const *texts, size_t most)
{
    json_t *list = json_array();

    for (size_t i = 0; i < most && texts[i]; i++)
        json_array_append_new(list, cli_json_text(texts[i]));
    return list;
}

static json_t *question_json(const quiz *q, const quiz_question *question)
{
    json_t *facts = json_array();
    json_t *j = json_pack("{s:s,s:o,s:o,s:o,s:I}", "type", q->types[question->type], "question",
                          cli_json_text(question->text), "answers",
                          texts_json(question->answers, QUIZ_ANSWERS), "choices",
                          texts_json(question->choices, QUIZ_CHOICES), "right",
                          (json_int_t)question->right);

    for (size_t i = 0; i < question->n_evidence; i++)
        json_array_append_new(facts, json_integer((json_int_t)question->evidence[i]));
    json_object_set_new(j, "facts", facts);
    return j;
}

static json_t *store_json(const quiz *q, const quiz_store *s, size_t n)
{
    json_t *facts = json_array(), *questions = json_array();

    for (size_t i = 0; i < s->n_facts; i++)
        json_array_append_new(facts, json_pack("{s:o,s:o}", "text", cli_json_text(s->facts[i].text),
                                               "event_time", cli_json_time(s->facts[i].time)));
    for (size_t i = 0; i < n; i++)
        json_array_append_new(questions, question_json(q, &s->questions[i]));
    return json_pack("{s:o,s:o,s:o}", "memory", cli_json_text(s->id), "facts", facts, "questions",
                     questions);
}

static void print_question(const quiz *q, const quiz_store *s, size_t i, size_t number_of_all)
{
    const quiz_question *question = &s->questions[i];
    char date[32];

    printf("%zu. [%s, %s] ", number_of_all + 1, s->id, q->types[question->type]);
    cli_put_text(stdout, question->text, true);
    printf("\n   answer   ");
    cli_put_text(stdout, question->answers[0], true);
    for (size_t k = 0; k < QUIZ_CHOICES && question->choices[k]; k++) {
        printf("%s", k ? ", " : "\n   choices  ");
        cli_put_text(stdout, question->choices[k], true);
    }
    for (size_t k = 0; k < question->n_evidence; k++) {
        const quiz_fact *f = &s->facts[question->evidence[k]];

        cli_date(f->time, date);
        printf("\n   %s %s: ", k ? "        " : "facts   ", date);
        cli_put_text(stdout, f->text, true);
    }
    printf("\n\n");
}

int accuracy_print_questions(const cli_args *args, const quiz *q, size_t n)
{
    const bool json = cli_wants_json(args);
    json_t *stores = json ? json_array() : NULL;
    size_t done = 0;
    is_status st = INFERSCALE_OK;

    for (uint32_t i = 0; done < n && st == INFERSCALE_OK; i++) {
        quiz_store *s = NULL;
        size_t here;

        st = quiz_store_at(q, i, &s);
        here = s && n - done < s->n_questions ? n - done : s ? s->n_questions : 0;
        if (s && json) json_array_append_new(stores, store_json(q, s, here));
        for (size_t k = 0; k < here && !json; k++) print_question(q, s, k, done + k);
        done += here;
        quiz_store_free(s);
    }
    if (st != INFERSCALE_OK && st != INFERSCALE_E_NOTFOUND) {
        json_decref(stores);
        return cli_fail_as(args, st);
    }
    if (!json) return 0;
    return cli_print_json(json_pack("{s:s,s:I,s:I,s:o}", "questions", q->name, "seed",
                                    (json_int_t)q->seed, "n", (json_int_t)done, "memories",
                                    stores));
}
