/* report.c - see report.h: what a report holds, plots that files share, and writing. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "eval/report_parts.h"

is_status report_no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory while making a report");
}

is_status report_new(report **out)
{
    *out = is_calloc(1, sizeof **out);
    return *out ? INFERSCALE_OK : report_no_memory();
}

void report_free(report *r)
{
    if (r == NULL) return;
    for (size_t i = 0; i < r->n_plots; i++) {
        chart_free(&r->plots[i]->chart);
        is_free(r->plots[i]->heads);
        is_free(r->plots[i]);
    }
    is_free(r->plots);
    is_free(r->sums);
    is_free(r->heads);
    is_free(r);
}

/* ---- Plots ----------------------------------------------------------------------------------- */

static is_status add_head(report_plot *p, size_t head)
{
    size_t *more;

    for (size_t i = 0; i < p->n_heads; i++)
        if (p->heads[i] == head) return INFERSCALE_OK;
    more = is_realloc(p->heads, (p->n_heads + 1) * sizeof *more);
    if (more == NULL) return report_no_memory();
    p->heads = more;
    p->heads[p->n_heads++] = head;
    return INFERSCALE_OK;
}

is_status report_plot_new(report *r, report_section section, size_t head, report_plot **out)
{
    report_plot **more = is_realloc(r->plots, (r->n_plots + 1) * sizeof *more);

    *out = NULL;
    if (more == NULL) return report_no_memory();
    r->plots = more;
    more[r->n_plots] = is_calloc(1, sizeof **more);
    if (more[r->n_plots] == NULL) return report_no_memory();
    *out = more[r->n_plots++];
    (*out)->section = section;
    (*out)->chart.mark = NAN;
    return add_head(*out, head);
}

is_status report_sum_add(report *r, const report_sum *sum)
{
    report_sum *more = is_realloc(r->sums, (r->n_sums + 1) * sizeof *more);

    if (more == NULL) return report_no_memory();
    r->sums = more;
    r->sums[r->n_sums++] = *sum;
    return INFERSCALE_OK;
}

/* ---- What files share ------------------------------------------------------------------------ */

static bool same_plot(const report_sum *a, const report_sum *b)
{
    return a->section == b->section && strcmp(a->group, b->group) == 0;
}

/* Is this the run with the most questions of those that say the same? */
static bool is_best(const report *r, size_t i)
{
    const report_sum *a = &r->sums[i];

    for (size_t k = 0; k < r->n_sums; k++) {
        const report_sum *b = &r->sums[k];

        if (k == i || !same_plot(a, b) || strcmp(a->series, b->series) != 0 ||
            b->point.x != a->point.x)
            continue;
        if (b->point.n > a->point.n || (k < i && !(b->point.n < a->point.n))) return false;
    }
    return true;
}

/* Has the series another x in this group? A single dot of a line over k says nothing of k. */
static bool is_line(const report *r, size_t i)
{
    for (size_t k = 0; k < r->n_sums; k++)
        if (same_plot(&r->sums[i], &r->sums[k]) && r->sums[k].point.x != r->sums[i].point.x &&
            strcmp(r->sums[i].series, r->sums[k].series) == 0)
            return true;
    return false;
}

static void describe(report_plot *p, const report_sum *sum)
{
    static const struct {
        const char *title, *x, *value, *interval;
        bool log;
    } texts[REPORT_SECTIONS] = {
        [REPORT_ACCURACY_K] = { "Right answers by number of facts", "facts retrieved, k",
                                "right answers, %", "95%, Wilson's", false },
        [REPORT_ORDER_K] = { "Order ratio by number of facts", "facts retrieved, k",
                             "KL over a reordering's", "95%, bootstrap over questions", true },
        [REPORT_CODEC] = { "Order ratio by bytes stored", "bytes a token and set of rows",
                           "KL over a reordering's", "95%, bootstrap over questions", true },
    };
    chart *c = &p->chart;
    const int s = (int)sum->section;

    c->kind = CHART_LINES;
    report_copy(c->title, sizeof c->title, texts[s].title);
    report_copy(c->subtitle, sizeof c->subtitle, sum->group);
    report_copy(c->x.title, sizeof c->x.title, texts[s].x);
    report_copy(c->value.title, sizeof c->value.title, texts[s].value);
    report_copy(c->interval, sizeof c->interval, texts[s].interval);
    c->value.log = texts[s].log;
    if (c->value.log) {
        c->mark = 1;
        report_copy(c->mark_name, sizeof c->mark_name, "a reordering");
    }
    report_print(c->id, sizeof c->id, "%s-%s", report_abouts[s].id, sum->group);
}

is_status report_shared(report *r)
{
    for (size_t i = 0; i < r->n_sums; i++) {
        report_plot *p = NULL;

        if (!is_best(r, i) || !is_line(r, i)) continue;
        for (size_t k = 0; k < r->n_plots && p == NULL; k++)
            if (r->plots[k]->section == r->sums[i].section &&
                strcmp(r->plots[k]->chart.subtitle, r->sums[i].group) == 0)
                p = r->plots[k];
        if (p == NULL) {
            IS_TRY(report_plot_new(r, r->sums[i].section, r->sums[i].head, &p));
            describe(p, &r->sums[i]);
        }
        IS_TRY(add_head(p, r->sums[i].head));
        IS_TRY(chart_add(&p->chart, r->sums[i].series, r->sums[i].point));
    }
    return INFERSCALE_OK;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* A file's name without ".json". Letters, digits, '.', '_' and '-' stay; other runs become one
 * '-'; none at either end. */
static void make_id(char id[96])
{
    char *end = strstr(id, ".json");
    size_t n = 0;

    if (end && (end[5] == 0 || strcmp(end + 5, "l") == 0)) *end = 0;
    for (const char *s = id; *s && n < 80; s++) {
        const bool plain = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') ||
                           (*s >= '0' && *s <= '9') || *s == '.' || *s == '_';

        if (plain && (n > 0 || *s != '.')) id[n++] = *s;
        else if (n > 0 && id[n - 1] != '-') id[n++] = '-';
    }
    while (n > 0 && (id[n - 1] == '-' || id[n - 1] == '.')) n--;
    id[n] = 0;
    if (n == 0) memcpy(id, "plot", 5);
}

static void make_ids(report *r)
{
    for (size_t i = 0; i < r->n_plots; i++) {
        char *id = r->plots[i]->chart.id;
        int number = 1;

        make_id(id);
        for (size_t k = 0; k < i; k++)
            if (strcmp(r->plots[k]->chart.id, id) == 0) {
                char base[96];

                report_copy(base, 84, id);
                report_print(id, 96, "%s-%d", base, ++number);
                k = (size_t)-1; /* once more, with the new name */
            }
    }
}

static is_status write_file(const char *folder, const char *name, const is_buf *b)
{
    char *path = is_path_join(folder, name);
    is_status st;

    if (path == NULL || !is_buf_ok(b)) st = report_no_memory();
    else st = is_file_write_atomic(is_fs_posix(), path, b->data, b->len);
    if (st == INFERSCALE_OK) st = is_fs_posix()->set_mode(is_fs_posix(), path, 0644);
    is_free(path);
    return st;
}

static is_status write_plots(const report *r, const char *folder)
{
    is_status st = INFERSCALE_OK;

    for (size_t i = 0; i < r->n_plots && st == INFERSCALE_OK; i++) {
        char name[112];
        is_buf b = IS_BUF_INIT;

        chart_svg(&r->plots[i]->chart, &b);
        snprintf(name, sizeof name, "%s.svg", r->plots[i]->chart.id);
        st = write_file(folder, name, &b);
        is_buf_free(&b);
    }
    return st;
}

/* A new folder may be read by all, as a page is. */
static is_status make_folder(const char *folder)
{
    const is_fs *fs = is_fs_posix();

    if (fs->exists(fs, folder)) return INFERSCALE_OK;
    IS_TRY(fs->mkdirs(fs, folder));
    return fs->set_mode(fs, folder, 0755);
}

/* Plots without a point go. */
static void drop_empty(report *r)
{
    size_t n = 0;

    for (size_t i = 0; i < r->n_plots; i++) {
        report_plot *p = r->plots[i];

        chart_end(&p->chart);
        if (!chart_is_empty(&p->chart)) {
            r->plots[n++] = p;
            continue;
        }
        chart_free(&p->chart);
        is_free(p->heads);
        is_free(p);
    }
    r->n_plots = n;
}

is_status report_write(report *r, const char *folder, report_written *out)
{
    is_buf page = IS_BUF_INIT;
    is_status st;

    *out = (report_written){ 0 };
    IS_TRY(report_shared(r));
    drop_empty(r);
    make_ids(r);
    for (int s = 0; s < REPORT_SECTIONS; s++) {
        size_t n = 0;

        for (size_t i = 0; i < r->n_plots; i++) n += (int)r->plots[i]->section == s;
        if (n == 0) out->missing[out->n_missing++] = report_abouts[s].command;
    }
    out->n_plots = r->n_plots;
    IS_TRY(make_folder(folder));
    st = write_plots(r, folder);
    report_page(r, &page);
    if (st == INFERSCALE_OK) st = write_file(folder, "index.html", &page);
    is_buf_free(&page);
    return st;
}
