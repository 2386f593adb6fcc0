/* chart_svg.c - draws a plot (chart.h). Ticks carry their value and points their place, so that
 * tests compute back from what is drawn to the numbers. */
#include "eval/chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "eval/chart_style.h"

enum { WIDTH = 660, MARGIN = 16, LINES_HEIGHT = 290, TICKS = 24, ROW = 13, NAME_CHARS = 38 };
static const double char_px = 6.6; /* a wide guess for 12 px */

/* What is shown of an axis, and where. */
typedef struct scale {
    bool log;
    double min, max;   /* values */
    double from, to;   /* px */
    double ticks[TICKS];
    size_t n;
} scale;

typedef struct canvas {
    const chart *c;
    is_buf *out;
    scale x, value;        /* x: of lines only */
    double top, bottom, left, right; /* of the field */
} canvas;

/* ---- Scales ---------------------------------------------------------------------------------- */

static double place(const scale *s, double v)
{
    double t;

    if (s->log) v = v < s->min ? s->min : v;
    t = s->log ? log10(v / s->min) / log10(s->max / s->min) : (v - s->min) / (s->max - s->min);
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    return s->from + (s->to - s->from) * t;
}

/* The largest of 1, 2, 5 times a power of ten that is at most x, or with up the smallest above. */
static double snapped(double x, bool up)
{
    static const double steps[] = { 1, 2, 5, 10 };
    const double decade = pow(10, floor(log10(x) + 1e-9));

    for (int i = 0; up && i < 4; i++)
        if (steps[i] * decade >= x * (1 - 1e-9)) return steps[i] * decade;
    for (int i = 3; i > 0; i--)
        if (steps[i] * decade <= x * (1 + 1e-9)) return steps[i] * decade;
    return decade;
}

static void log_ticks(scale *s)
{
    const bool whole = s->max / s->min > 150;

    for (double t = s->min; t <= s->max * 1.0001 && s->n < TICKS; t = snapped(t * 1.9, true)) {
        const double decades = log10(t);

        if (!whole || fabs(decades - round(decades)) < 1e-6) s->ticks[s->n++] = t;
    }
}

static void linear_ticks(scale *s)
{
    const double step = snapped((s->max - s->min) / 6, true);

    s->min = floor(s->min / step + 1e-9) * step;
    s->max = ceil(s->max / step - 1e-9) * step;
    for (size_t i = 0; i < TICKS && s->min + (double)i * step <= s->max + step / 2; i++)
        s->ticks[s->n++] = s->min + (double)i * step;
}

static void cover(scale *s, double v)
{
    if (!isfinite(v) || (s->log && v <= 1e-12)) return;
    if (isnan(s->min) || v < s->min) s->min = v;
    if (isnan(s->max) || v > s->max) s->max = v;
}

static void end_scale(scale *s)
{
    if (isnan(s->min)) s->min = s->max = 1;
    if (s->log) {
        s->min = snapped(s->min, false);
        s->max = snapped(s->max, true);
        if (s->max <= s->min * 1.001) s->max = snapped(s->max * 1.9, true);
        log_ticks(s);
        return;
    }
    if (s->min > 0) s->min = 0;
    if (s->max < 0) s->max = 0;
    if (s->max - s->min < 1e-9) s->max = s->min + 1;
    linear_ticks(s);
}

static void make_scales(canvas *v)
{
    const chart *c = v->c;

    v->x = (scale){ .log = c->x.log, .min = NAN, .max = NAN };
    v->value = (scale){ .log = c->value.log, .min = NAN, .max = NAN };
    for (size_t i = 0; i < c->n_series; i++)
        for (size_t k = 0; k < c->series[i].n; k++) {
            const chart_point *p = &c->series[i].points[k];

            cover(&v->x, p->x);
            cover(&v->value, p->value);
            cover(&v->value, p->lo);
            cover(&v->value, p->hi);
        }
    cover(&v->value, c->mark);
    end_scale(&v->x);
    end_scale(&v->value);
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

static void put_text(is_buf *out, double x, double y, int size, const char *anchor,
                     const char *class, const char *s)
{
    is_buf_fmt(out, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" text-anchor=\"%s\"", x, y, size,
               anchor);
    if (class[0]) is_buf_fmt(out, " class=\"%s\"", class);
    is_buf_str(out, ">");
    chart_escape(out, s);
    is_buf_str(out, "</text>");
}

static size_t chars(const char *s)
{
    size_t n = 0;

    for (; *s; s++) n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

/* At most `most` characters, the last of a cut one an ellipsis. */
static void shorten(char out[CHART_TEXT + 4], const char *s, size_t most)
{
    size_t n = 0, at = 0;

    for (; s[at] && at < CHART_TEXT; at++)
        if (((unsigned char)s[at] & 0xC0) != 0x80 && ++n > most) break;
    memcpy(out, s, at);
    memcpy(out + at, "\xE2\x80\xA6", s[at] ? 4 : 0);
    if (!s[at]) out[at] = 0;
}

/* The subtitle in lines of so many characters; the y below it. */
static double put_wrapped(is_buf *out, double y, const char *s)
{
    enum { MOST = 104 };
    char line[CHART_TEXT];

    while (*s) {
        size_t n = strlen(s);

        if (n > MOST) {
            n = MOST;
            while (n > 0 && (s[n] != ' ' || s[n + 1] == '=' || s[n - 1] == '=')) n--;
            if (n == 0) n = strlen(s);
        }
        snprintf(line, sizeof line, "%.*s", (int)n, s);
        put_text(out, MARGIN, y, 11, "start", "dim", line);
        y += 15;
        s += n + (s[n] == ' ');
    }
    return y;
}

static double put_legend(const canvas *v, double y)
{
    const chart *c = v->c;
    double x = MARGIN;

    for (size_t i = 0; i < c->n_series; i++) {
        const chart_series *s = &c->series[i];
        char name[CHART_TEXT + 4];
        double width;

        if (s->n == 0) continue;
        shorten(name, s->name, 60);
        width = 52 + char_px * (double)chars(name);
        if (x > MARGIN && x + width > WIDTH - MARGIN) x = MARGIN, y += 19;
        if (c->kind == CHART_LINES)
            is_buf_fmt(v->out,
                       "<path class=\"line s%u\" stroke-dasharray=\"%s\" d=\"M%.1f %.1fh28\"/>",
                       s->style % CHART_STYLES, chart_dash(s->style), x, y - 4);
        chart_marker(v->out, s->style, x + 14, y - 4);
        put_text(v->out, x + 34, y, 12, "start", "", name);
        x += width;
    }
    return y + 12;
}

static void put_tick(const canvas *v, bool across, double value, const char *label)
{
    const double at = place(across == (v->c->kind == CHART_LINES) ? &v->x : &v->value, value);

    is_buf_fmt(v->out, "<g class=\"tick\" data-axis=\"%c\" data-value=\"%.9g\" data-at=\"%.2f\">",
               across ? 'x' : 'y', value, at);
    if (across) {
        is_buf_fmt(v->out, "<path class=\"grid\" d=\"M%.2f %.2fV%.2f\"/>", at, v->top, v->bottom);
        put_text(v->out, at, v->bottom + 17, 12, "middle", "", label);
    } else {
        is_buf_fmt(v->out, "<path class=\"grid\" d=\"M%.2f %.2fH%.2f\"/>", v->left, at, v->right);
        put_text(v->out, v->left - 7, at + 4, 12, "end", "", label);
    }
    is_buf_str(v->out, "</g>");
}

static void put_ticks(const canvas *v, bool across, const scale *s)
{
    for (size_t i = 0; i < s->n; i++) {
        char label[32];

        chart_number(label, s->ticks[i]);
        put_tick(v, across, s->ticks[i], label);
    }
}

static void put_bar(is_buf *out, const chart_point *p, const scale *s, bool across)
{
    const double at = place(s, p->value), lo = place(s, p->lo) - at, hi = place(s, p->hi) - at;

    if (across)
        is_buf_fmt(out, "M%.2f -4v8m0 -4H%.2fm0 -4v8", lo, hi);
    else
        is_buf_fmt(out, "M-4 %.2fh8m-4 0V%.2fm-4 0h8", lo, hi);
}

static void put_point(const canvas *v, size_t series, const chart_point *p, double x, double y)
{
    const chart *c = v->c;
    const chart_series *s = &c->series[series];
    const bool dots = c->kind == CHART_DOTS;
    char value[32], lo[32], hi[32], at[32];

    is_buf_fmt(v->out, "<g class=\"point\" data-series=\"%zu\" transform=\"translate(%.2f %.2f)\">",
               series, x, y);
    chart_number(value, p->value);
    chart_number(lo, p->lo);
    chart_number(hi, p->hi);
    chart_number(at, p->x);
    is_buf_str(v->out, "<title>");
    chart_escape(v->out, s->name);
    is_buf_str(v->out, ", ");
    chart_escape(v->out, dots ? c->rows[(size_t)p->x] : at);
    is_buf_fmt(v->out, ": %s", value);
    if (!isnan(p->lo)) is_buf_fmt(v->out, " [%s, %s]", lo, hi);
    if (!isnan(p->n)) is_buf_fmt(v->out, ", n = %.0f", p->n);
    is_buf_str(v->out, "</title>");
    if (!isnan(p->lo)) {
        is_buf_fmt(v->out, "<path class=\"bar s%u\" d=\"", s->style % CHART_STYLES);
        put_bar(v->out, p, &v->value, dots);
        is_buf_str(v->out, "\"/>");
    }
    chart_marker(v->out, s->style, 0, 0);
    is_buf_str(v->out, "</g>");
}

static void put_mark(const canvas *v)
{
    const chart *c = v->c;
    double at;

    if (isnan(c->mark)) return;
    at = place(&v->value, c->mark);
    if (c->kind == CHART_DOTS) {
        is_buf_fmt(v->out, "<path class=\"mark\" d=\"M%.2f %.2fV%.2f\"/>", at, v->top, v->bottom);
        put_text(v->out, at, v->top - 5, 11, at > v->right - 120 ? "end" : "middle", "dim",
                 c->mark_name);
    } else {
        is_buf_fmt(v->out, "<path class=\"mark\" d=\"M%.2f %.2fH%.2f\"/>", v->left, at, v->right);
        put_text(v->out, v->right, at - 5, 11, "end", "dim", c->mark_name);
    }
}

/* ---- The two kinds --------------------------------------------------------------------------- */

static void put_lines(const canvas *v)
{
    const chart *c = v->c;

    for (size_t i = 0; i < c->n_series; i++) {
        const chart_series *s = &c->series[i];

        if (s->n > 1)
            is_buf_fmt(v->out, "<path class=\"line s%u\" stroke-dasharray=\"%s\" d=\"",
                       s->style % CHART_STYLES, chart_dash(s->style));
        for (size_t k = 0; s->n > 1 && k < s->n; k++)
            is_buf_fmt(v->out, "%c%.2f %.2f", k ? 'L' : 'M', place(&v->x, s->points[k].x),
                       place(&v->value, s->points[k].value));
        if (s->n > 1) is_buf_str(v->out, "\"/>");
    }
    for (size_t i = 0; i < c->n_series; i++)
        for (size_t k = 0; k < c->series[i].n; k++) {
            const chart_point *p = &c->series[i].points[k];

            put_point(v, i, p, place(&v->x, p->x), place(&v->value, p->value));
        }
}

/* How many points stand in a row, and how many of them are of series before this one. */
static size_t points_in(const chart *c, size_t row, size_t before)
{
    size_t n = 0;

    for (size_t i = 0; i < c->n_series && i < before; i++)
        for (size_t k = 0; k < c->series[i].n; k++) n += (size_t)c->series[i].points[k].x == row;
    return n;
}

static double row_height(const chart *c)
{
    size_t most = 0;

    for (size_t r = 0; r < c->n_rows; r++) {
        const size_t n = points_in(c, r, c->n_series);

        most = n > most ? n : most;
    }
    return most < 2 ? 26 : (double)most * ROW + 10;
}

static void put_names(const canvas *v, double height)
{
    const chart *c = v->c;

    for (size_t r = 0; r < c->n_rows; r++) {
        const double y = v->top + height * ((double)r + 0.5);
        char name[CHART_TEXT + 4];

        shorten(name, c->rows[r], NAME_CHARS);
        put_text(v->out, v->left - 9, y + 4, 12, "end", "", name);
        if (r)
            is_buf_fmt(v->out, "<path class=\"grid\" d=\"M%d %.2fH%.2f\"/>", MARGIN,
                       v->top + height * (double)r, v->right);
    }
}

static void put_dots(const canvas *v)
{
    const chart *c = v->c;
    const double height = row_height(c);

    put_names(v, height);
    for (size_t i = 0; i < c->n_series; i++)
        for (size_t k = 0; k < c->series[i].n; k++) {
            const chart_point *p = &c->series[i].points[k];
            const size_t row = (size_t)p->x, n = points_in(c, row, c->n_series);
            size_t at = points_in(c, row, i);

            for (size_t z = 0; z < k; z++) at += c->series[i].points[z].x == p->x;
            put_point(v, i, p, place(&v->value, p->value),
                      v->top + height * (p->x + 0.5) + ROW * ((double)at - ((double)n - 1) / 2));
        }
}

/* ---- The plot -------------------------------------------------------------------------------- */

static double left_of(const chart *c)
{
    size_t most = 6;

    if (c->kind == CHART_LINES) return 78;
    for (size_t i = 0; i < c->n_rows; i++) {
        const size_t n = chars(c->rows[i]);

        most = n > most ? n : most;
    }
    return MARGIN + 14 + char_px * (double)(most > NAME_CHARS ? NAME_CHARS : most);
}

static void put_titles(const canvas *v)
{
    const chart *c = v->c;
    const chart_axis *across = c->kind == CHART_LINES ? &c->x : &c->value;
    const double middle = (v->left + v->right) / 2;

    put_text(v->out, middle, v->bottom + 38, 12, "middle", "", across->title);
    if (c->kind == CHART_DOTS) return;
    is_buf_fmt(v->out, "<g transform=\"translate(%d %.1f) rotate(-90)\">", MARGIN + 8,
               (v->top + v->bottom) / 2);
    put_text(v->out, 0, 0, 12, "middle", "", c->value.title);
    is_buf_str(v->out, "</g>");
}

static void put_field(canvas *v)
{
    const bool lines = v->c->kind == CHART_LINES;

    v->x.from = v->left;
    v->x.to = v->right;
    v->value.from = lines ? v->bottom : v->left;
    v->value.to = lines ? v->top : v->right;
    if (lines) put_ticks(v, true, &v->x);
    put_ticks(v, !lines, &v->value);
    put_mark(v);
    if (lines) put_lines(v);
    else put_dots(v);
    put_titles(v);
}

void chart_svg(const chart *c, is_buf *out)
{
    is_buf body = IS_BUF_INIT;
    canvas v = { .c = c, .out = &body, .left = left_of(c), .right = WIDTH - 26 };
    double y, height;

    make_scales(&v);
    put_text(&body, MARGIN, 24, 15, "start", "", c->title);
    y = put_wrapped(&body, 42, c->subtitle);
    y = put_legend(&v, y + 8);
    v.top = y + (isnan(c->mark) ? 6 : 18);
    v.bottom = v.top + (c->kind == CHART_LINES ? LINES_HEIGHT : row_height(c) * (double)c->n_rows);
    put_field(&v);
    height = v.bottom + 50;
    is_buf_fmt(out,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" role=\"img\" "
               "viewBox=\"0 0 %d %.0f\" width=\"%d\" height=\"%.0f\" aria-label=\"",
               WIDTH, height, WIDTH, height);
    chart_escape(out, c->title);
    is_buf_fmt(out, "\"><style>%s</style><rect class=\"bg\" width=\"%d\" height=\"%.0f\"/>",
               chart_css, WIDTH, height);
    if (is_buf_ok(&body)) is_buf_add(out, body.data, body.len);
    else out->failed = true;
    is_buf_str(out, "</svg>\n");
    is_buf_free(&body);
}
