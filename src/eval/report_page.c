/* report_page.c - the page: plots in the text, the numbers of each in a table below it, and where
 * they come from. One file that needs no other. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "eval/report_parts.h"

const report_about report_abouts[REPORT_SECTIONS] = {
    [REPORT_ACCURACY] = { "accuracy", "Right answers by type of question and arm",
                          "The same questions over the same facts: without memory (none), with "
                          "only the facts that give the answer (gold), with the retrieved facts "
                          "as text, and with their stored rows injected. Text twins of injected "
                          "orders are in the file and not drawn.",
                          "inferscale eval accuracy --results accuracy.jsonl" },
    [REPORT_ACCURACY_K] = { "accuracy-k", "Right answers by number of facts",
                            "Runs of one model with several k, all types of questions together.",
                            "inferscale eval accuracy --k 50 --results accuracy-k50.jsonl" },
    [REPORT_ORDER] = { "order", "Order ratio by policy",
                       "How far an arm's next-token distributions are from those of the text twin, "
                       "divided by how far the same facts in another order are. Below 1: injecting "
                       "moves the answer less than a shuffle does.",
                       "inferscale eval fidelity --data FILE --json >fidelity.json" },
    [REPORT_ORDER_K] = { "order-k", "Order ratio by number of facts",
                         "Policies that were measured with several k. Of runs that measured the "
                         "same, the one with the most questions is drawn.",
                         "inferscale eval fidelity --data FILE --k 50 --json >fidelity-k50.json" },
    [REPORT_TTFT] = { "ttft", "Time to first token by number of facts",
                      "From question in to first token out, search included; rows in memory. "
                      "text: the same tokens computed, with the settings that are best for it; "
                      "plain: the prompt of a usual memory stack. "
                      "floor and repeat: the same tokens as an exact prefix hit, which nothing "
                      "that serves these facts can beat.",
                      "inferscale bench ttft --k 0,5,10,20,50,100 --json >ttft.json" },
    [REPORT_SERVE] = { "serve", "Answers a second by number of users",
                       "A server under load, a closed loop: each user asks again when an answer "
                       "has ended, over facts that no other user has. text: the same "
                       "memory computed, with the settings that are best for it; plain: the "
                       "prompts of a usual memory stack. Open loops (--rate) are in "
                       "the file and not drawn.",
                       "inferscale bench serve --users 1,8,32,100 --json >serve.json" },
    [REPORT_CODEC] = { "codec", "Quality by bytes stored",
                       "The order ratio against the bytes that a token of a fact takes in one set "
                       "of rows, by codec.",
                       "inferscale eval fidelity --data FILE --codec int8 --json >int8.json (and "
                       "with --codec f16)" },
    [REPORT_RECALL] = { "recall", "Evidence found by number of results",
                        "The part of the turns that hold a question's evidence among the k best "
                        "results.",
                        "inferscale eval recall --data FILE --k 5,10,20,50 --json >recall.json" },
};

static const char page_css[] =
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1a1a1a;--dim:#555;--rule:#dcdcdc;--box:#f5f6f7}"
    "@media (prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e8e8e8;--dim:#aab0b6;"
    "--rule:#363c42;--box:#1c2125}}"
    "*{box-sizing:border-box}"
    "body{margin:0 auto;padding:16px;max-width:980px;background:var(--bg);color:var(--fg);"
    "font:16px/1.5 system-ui,sans-serif}"
    "h1{font-size:1.6rem}h2{font-size:1.25rem;margin:2.5rem 0 .5rem}a{color:inherit}"
    "figure{margin:1.2rem 0 2.2rem}.scroll{overflow-x:auto;max-width:100%}"
    "svg.chart{display:block;width:100%;height:auto;min-width:520px;max-width:820px}"
    "table{border-collapse:collapse;font-size:.85rem;margin:.6rem 0;"
    "font-variant-numeric:tabular-nums}"
    "th,td{padding:3px 10px;border-bottom:1px solid var(--rule);text-align:right;"
    "white-space:nowrap}"
    "th:first-child,td:first-child,td.left,th.left{text-align:left}"
    "th{color:var(--dim);white-space:normal;vertical-align:bottom;min-width:5em}"
    "figcaption{font-size:.85rem;padding:0 16px}"
    "dl{font-size:.85rem;background:var(--box);padding:8px 12px;margin:.6rem 0;display:grid;"
    "grid-template-columns:max-content minmax(0,1fr);gap:1px 12px}dt{color:var(--dim)}"
    "dd{margin:0;overflow-wrap:anywhere}code{font-size:.9em;overflow-wrap:anywhere}"
    "p.dim,.dim{color:var(--dim)}p.missing{border-left:3px solid var(--rule);padding-left:12px}"
    "nav ul{columns:2;padding-left:1.2rem}@media (max-width:600px){nav ul{columns:1}}";

/* ---- Tables ---------------------------------------------------------------------------------- */

static void cell(is_buf *out, double x)
{
    char text[32];

    chart_number(text, x);
    is_buf_fmt(out, "<td>%s</td>", text);
}

/* Without what an axis says in brackets of itself. */
static void heading(is_buf *out, const char *class, const char *s)
{
    const char *end = strstr(s, " (");
    char name[CHART_TEXT];

    report_print(name, sizeof name, "%.*s", end ? (int)(end - s) : (int)strlen(s), s);
    is_buf_fmt(out, "<th scope=\"col\"%s>", class);
    chart_escape(out, name);
    is_buf_str(out, "</th>");
}

static void table_row(const chart *c, const chart_series *s, const chart_point *p, is_buf *out)
{
    char lo[32], hi[32];

    is_buf_str(out, "<tr><td>");
    if (c->kind == CHART_DOTS) {
        chart_escape(out, c->rows[(size_t)p->x]);
        is_buf_str(out, "</td><td class=\"left\">");
        chart_escape(out, s->name);
        is_buf_str(out, "</td>");
    } else {
        chart_escape(out, s->name);
        is_buf_str(out, "</td>");
        cell(out, p->x);
    }
    cell(out, p->value);
    chart_number(lo, p->lo);
    chart_number(hi, p->hi);
    if (c->interval[0] && !isnan(p->lo)) is_buf_fmt(out, "<td>[%s, %s]</td>", lo, hi);
    else if (c->interval[0]) is_buf_str(out, "<td>-</td>");
    if (isfinite(p->n)) is_buf_fmt(out, "<td>%.0f</td>", p->n);
    else is_buf_str(out, "<td>-</td>");
    for (int i = 0; i < CHART_MORE; i++)
        if (c->more[i][0]) cell(out, p->more[i]);
    is_buf_str(out, "</tr>\n");
}

static void table(const chart *c, is_buf *out)
{
    const bool dots = c->kind == CHART_DOTS;

    is_buf_str(out, "<div class=\"scroll\"><table><thead><tr>");
    heading(out, "", dots ? c->x.title : "arm");
    heading(out, dots ? " class=\"left\"" : "", dots ? "arm" : c->x.title);
    heading(out, "", c->value.title);
    if (c->interval[0]) heading(out, "", c->interval);
    heading(out, "", "n");
    for (int i = 0; i < CHART_MORE; i++)
        if (c->more[i][0]) heading(out, "", c->more[i]);
    is_buf_str(out, "</tr></thead><tbody>\n");
    for (size_t row = 0; row < (dots ? c->n_rows : 1); row++)
        for (size_t i = 0; i < c->n_series; i++)
            for (size_t k = 0; k < c->series[i].n; k++) {
                const chart_point *p = &c->series[i].points[k];

                if (!dots || (size_t)p->x == row) table_row(c, &c->series[i], p, out);
            }
    is_buf_str(out, "</tbody></table></div>\n");
}

/* ---- Where numbers come from ----------------------------------------------------------------- */

static void term(is_buf *out, const char *name, const char *text)
{
    if (text[0] == 0) return;
    is_buf_fmt(out, "<dt>%s</dt><dd>", name);
    chart_escape(out, text);
    is_buf_str(out, "</dd>\n");
}

static void source(const report_head *h, is_buf *out)
{
    static const char not_said[] = "not said in the file";
    char weights[2 * CHART_TEXT + 80];

    report_print(weights, sizeof weights, "%s%s%s%s%s", h->model[0] ? h->model : not_said,
             h->weights[0] ? ", " : "", h->weights, h->engine[0] ? "; " : "", h->engine);
    is_buf_str(out, "<dl>\n");
    term(out, "file", h->file);
    term(out, "model", weights);
    term(out, "machine", h->machine[0] ? h->machine : not_said);
    term(out, "date", h->date[0] ? h->date : not_said);
    term(out, "commit", h->commit[0] ? h->commit : not_said);
    term(out, "seed", h->seed);
    term(out, "command", h->command);
    term(out, "note", h->note);
    is_buf_str(out, "</dl>\n");
}

/* ---- The page -------------------------------------------------------------------------------- */

static void figure(const report *r, const report_plot *p, is_buf *out)
{
    const chart *c = &p->chart;

    is_buf_fmt(out, "<figure id=\"%s\"><div class=\"scroll\">\n", c->id);
    chart_svg(c, out);
    is_buf_str(out, "</div><figcaption class=\"dim\">");
    if (c->interval[0]) {
        is_buf_str(out, "Bars: ");
        chart_escape(out, c->interval);
        is_buf_str(out, ". ");
    } else {
        is_buf_str(out, "The file holds no intervals. ");
    }
    if (c->n_left_out)
        is_buf_fmt(out, "Rows without a value that the axis can show: %zu. ", c->n_left_out);
    is_buf_fmt(out, "<a href=\"%s.svg\">%s.svg</a></figcaption>\n", c->id, c->id);
    table(c, out);
    for (size_t i = 0; i < p->n_heads; i++) source(&r->heads[p->heads[i]], out);
    is_buf_str(out, "</figure>\n");
}

static size_t count(const report *r, int s)
{
    size_t n = 0;

    for (size_t i = 0; i < r->n_plots; i++) n += (int)r->plots[i]->section == s;
    return n;
}

static void section(const report *r, int s, is_buf *out)
{
    const report_about *a = &report_abouts[s];

    is_buf_fmt(out, "<section id=\"section-%s\"><h2>%s</h2>\n<p>", a->id, a->title);
    chart_escape(out, a->text);
    is_buf_str(out, "</p>\n");
    if (count(r, s) == 0) {
        is_buf_str(out, "<p class=\"missing\">No file that was given holds this. It is made by "
                        "<code>");
        chart_escape(out, a->command);
        is_buf_str(out, "</code></p>\n");
    }
    for (size_t i = 0; i < r->n_plots; i++)
        if ((int)r->plots[i]->section == s) figure(r, r->plots[i], out);
    is_buf_str(out, "</section>\n");
}

void report_page(const report *r, is_buf *out)
{
    is_buf_str(out, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                    "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
                    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                    "style-src 'unsafe-inline'\"><title>InferScale: results</title><style>");
    is_buf_str(out, page_css);
    is_buf_str(out, "</style></head><body>\n<h1>InferScale: results</h1>\n<p>Made by "
                    "<code>inferscale eval report</code> from the files named below each plot. "
                    "Numbers of different machines, models or dates stand in different plots and "
                    "do not compare. A command has the settings that its file holds; a run may "
                    "have had more.</p>\n<nav><ul>\n");
    for (int s = 0; s < REPORT_SECTIONS; s++)
        is_buf_fmt(out, "<li><a href=\"#section-%s\">%s</a> (%zu)</li>\n", report_abouts[s].id,
                   report_abouts[s].title, count(r, s));
    is_buf_str(out, "</ul></nav>\n");
    for (int s = 0; s < REPORT_SECTIONS; s++) section(r, s, out);
    is_buf_str(out, "</body></html>\n");
}
