/* chart.c - see chart.h: what a plot holds. chart_svg.c draws it. */
#include "eval/chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/sort.h"
#include "eval/chart_style.h"

static void keep(char *out, size_t cap, const char *s)
{
    const size_t n = strlen(s), most = n < cap ? n : cap - 1;
    size_t whole = most;

    while (n >= cap && whole > 0 && ((unsigned char)s[whole] & 0xC0) == 0x80) whole--;
    memcpy(out, s, whole);
    out[whole] = 0;
}

chart_series *chart_series_of(chart *c, const char *name)
{
    char kept[CHART_TEXT];

    keep(kept, sizeof kept, name);
    for (size_t i = 0; i < c->n_series; i++)
        if (strcmp(c->series[i].name, kept) == 0) return &c->series[i];
    if (c->n_series == CHART_SERIES) return NULL;
    c->series[c->n_series] = (chart_series){ 0 };
    memcpy(c->series[c->n_series].name, kept, sizeof kept);
    return &c->series[c->n_series++];
}

int chart_row_of(chart *c, const char *name)
{
    char kept[CHART_TEXT];

    keep(kept, sizeof kept, name);
    for (size_t i = 0; i < c->n_rows; i++)
        if (strcmp(c->rows[i], kept) == 0) return (int)i;
    if (c->n_rows == CHART_ROWS) return -1;
    c->rows[c->n_rows] = is_strdup(kept);
    return c->rows[c->n_rows] ? (int)c->n_rows++ : -1;
}

/* A value that an axis can show. */
static bool shows(const chart_axis *axis, double x)
{
    return isfinite(x) && fabs(x) < 1e12 && (!axis->log || x > 1e-12);
}

is_status chart_add(chart *c, const char *name, chart_point p)
{
    chart_series *s = NULL;
    chart_point *more;

    if (c->kind == CHART_DOTS ? p.x >= 0 && p.x < (double)c->n_rows : shows(&c->x, p.x))
        s = shows(&c->value, p.value) ? chart_series_of(c, name) : NULL;
    if (s == NULL || s->n == CHART_POINTS) {
        c->n_left_out++;
        return INFERSCALE_OK;
    }
    if (!isfinite(p.lo) || !isfinite(p.hi) || p.lo > p.hi || fabs(p.lo) > 1e12 || fabs(p.hi) > 1e12)
        p.lo = p.hi = NAN;
    more = is_realloc(s->points, (s->n + 1) * sizeof *more);
    if (more == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory while plotting %s", c->id);
    s->points = more;
    s->points[s->n++] = p;
    return INFERSCALE_OK;
}

static int by_x(const void *a, const void *b)
{
    const chart_point *p = a, *q = b;

    return (p->x > q->x) - (p->x < q->x);
}

/* Rows without a point go. */
static void drop_rows(chart *c)
{
    size_t to = 0;

    for (size_t from = 0; from < c->n_rows; from++) {
        bool used = false;

        for (size_t i = 0; i < c->n_series; i++)
            for (size_t k = 0; k < c->series[i].n; k++)
                if (c->series[i].points[k].x == (double)from) {
                    c->series[i].points[k].x = (double)to;
                    used = true;
                }
        if (used) c->rows[to++] = c->rows[from];
        else is_free(c->rows[from]);
    }
    c->n_rows = to;
}

static bool has_one_x(const chart *c)
{
    double x = NAN;

    for (size_t i = 0; i < c->n_series; i++)
        for (size_t k = 0; k < c->series[i].n; k++) {
            if (!isnan(x) && c->series[i].points[k].x != x) return false;
            x = c->series[i].points[k].x;
        }
    return !isnan(x);
}

/* A line needs two. */
static void make_dots(chart *c)
{
    char x[32], row[64];
    double at = 0;

    for (size_t i = 0; i < c->n_series; i++)
        if (c->series[i].n) at = c->series[i].points[0].x;
    chart_number(x, at);
    snprintf(row, sizeof row, "%s %s", x, c->unit);
    if (chart_row_of(c, row) < 0) return;
    c->kind = CHART_DOTS;
    for (size_t i = 0; i < c->n_series; i++)
        for (size_t k = 0; k < c->series[i].n; k++) c->series[i].points[k].x = 0;
}

void chart_end(chart *c)
{
    bool taken[CHART_STYLES] = { false };
    unsigned next = 0;

    if (c->kind == CHART_LINES && has_one_x(c)) make_dots(c);
    if (c->kind == CHART_DOTS) drop_rows(c);
    for (size_t i = 0; i < c->n_series; i++) {
        const int known = chart_style_known(c->series[i].name);

        is_sort(c->series[i].points, c->series[i].n, sizeof(chart_point), by_x);
        c->series[i].style = known >= 0 && !taken[known] ? (unsigned)known : CHART_STYLES;
        if (c->series[i].style < CHART_STYLES) taken[known] = true;
    }
    for (size_t i = 0; i < c->n_series; i++) {
        if (c->series[i].style < CHART_STYLES) continue;
        while (next < CHART_STYLES && taken[next]) next++;
        c->series[i].style = next++;
    }
}

bool chart_is_empty(const chart *c)
{
    for (size_t i = 0; i < c->n_series; i++)
        if (c->series[i].n) return false;
    return true;
}

void chart_free(chart *c)
{
    for (size_t i = 0; i < c->n_series; i++) is_free(c->series[i].points);
    for (size_t i = 0; i < c->n_rows; i++) is_free(c->rows[i]);
    *c = (chart){ 0 };
}

/* ---- Text ------------------------------------------------------------------------------------ */

/* Of a three-byte character: U+2028..U+202E, U+2066..U+2069, U+200E, U+200F, U+FFFE, U+FFFF. */
static bool is_odd(const unsigned char *s)
{
    const unsigned u = ((s[0] & 15u) << 12) | ((s[1] & 63u) << 6) | (s[2] & 63u);

    return (u >= 0x2028 && u <= 0x202E) || (u >= 0x2066 && u <= 0x2069) || u == 0x200E ||
           u == 0x200F || u >= 0xFFFE;
}

void chart_escape(is_buf *out, const char *s)
{
    static const char replaced[] = "\xEF\xBF\xBD";

    for (const unsigned char *p = (const unsigned char *)s; *p; p++) {
        if (*p == '&') is_buf_str(out, "&amp;");
        else if (*p == '<') is_buf_str(out, "&lt;");
        else if (*p == '>') is_buf_str(out, "&gt;");
        else if (*p == '"') is_buf_str(out, "&quot;");
        else if (*p == '\'') is_buf_str(out, "&#39;");
        else if (*p < 32 || *p == 127) is_buf_str(out, replaced);
        else if (*p == 0xC2 && p[1] >= 0x80 && p[1] < 0xA0) is_buf_str(out, replaced), p++;
        else if (*p >= 0xE0 && *p < 0xF0 && p[1] && p[2] && is_odd(p))
            is_buf_str(out, replaced), p += 2;
        else is_buf_add(out, p, 1);
    }
}

void chart_number(char out[32], double x)
{
    const double a = fabs(x);
    int digits;

    if (!isfinite(x)) {
        snprintf(out, 32, "-");
        return;
    }
    if (a != 0 && (a < 1e-4 || a >= 1e7)) {
        snprintf(out, 32, "%.3g", x);
        return;
    }
    digits = a >= 100 || a == 0 ? 0 : a >= 10 ? 1 : a >= 1 ? 2 : 2 - (int)floor(log10(a));
    snprintf(out, 32, "%.*f", digits, x);
    if (strchr(out, '.') == NULL) return;
    for (size_t n = strlen(out); n > 1 && out[n - 1] == '0';) out[--n] = 0;
    if (out[strlen(out) - 1] == '.') out[strlen(out) - 1] = 0;
}
