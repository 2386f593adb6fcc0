/* chart_style.c - see chart_style.h. The colours are Okabe and Ito's, without the yellow, which
 * does not show on white; the last is the colour of text. */
#include "eval/chart_style.h"

#include <string.h>

const char chart_css[] =
    ".chart{--bg:#fff;--fg:#1a1a1a;--dim:#555;--grid:#dcdcdc;--c0:#0072b2;--c1:#d55e00;"
    "--c2:#009e73;--c3:#cc79a7;--c4:#e69f00;--c5:#56b4e9;--c6:#1a1a1a;--c7:#777}"
    "@media (prefers-color-scheme:dark){.chart{--bg:#14171a;--fg:#e8e8e8;--dim:#aab0b6;"
    "--grid:#363c42;--c0:#3d9fe0;--c1:#f0813a;--c2:#2bbf93;--c3:#dd9cbf;--c4:#efb43a;"
    "--c5:#8accf2;--c6:#f2f2f2;--c7:#9a9a9a}}"
    ".chart text{font-family:system-ui,sans-serif;fill:var(--fg);stroke:none}"
    ".chart .dim{fill:var(--dim)}.chart .bg{fill:var(--bg);stroke:none}"
    ".chart .grid{stroke:var(--grid);stroke-width:1}"
    ".chart .mark{stroke:var(--fg);stroke-width:1.5;stroke-dasharray:2 3}"
    ".chart .s0{--c:var(--c0)}.chart .s1{--c:var(--c1)}.chart .s2{--c:var(--c2)}"
    ".chart .s3{--c:var(--c3)}.chart .s4{--c:var(--c4)}.chart .s5{--c:var(--c5)}"
    ".chart .s6{--c:var(--c6)}.chart .s7{--c:var(--c7)}"
    ".chart .line{fill:none;stroke:var(--c);stroke-width:2}"
    ".chart .bar{fill:none;stroke:var(--c);stroke-width:1.5}"
    ".chart .dot{fill:var(--c);stroke:var(--bg);stroke-width:1}"
    ".chart .open{fill:none;stroke:var(--c);stroke-width:2.5}";

int chart_style_known(const char *s)
{
    static const struct {
        const char *name;
        int style;
    } known[] = { { "injected", 0 }, { "kv", 0 },   { "text", 1 },  { "floor", 2 }, { "repeat", 2 },
                  { "plain", 3 },    { "gold", 4 }, { "none", 6 },  { "no memory", 6 } };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(s, known[i].name) == 0) return known[i].style;
    return -1;
}

const char *chart_dash(unsigned style)
{
    static const char *const dashes[CHART_STYLES] = { "", "7 4", "2 3", "9 3 2 3", "4 2",
                                                      "12 4", "1 4", "6 2 1 2 1 2" };

    return dashes[style % CHART_STYLES];
}

void chart_marker(is_buf *out, unsigned style, double x, double y)
{
    const unsigned colour = style % CHART_STYLES, shape = (style + style / CHART_STYLES) % 8;
    const double r = 4.5;

    if (shape == 0)
        is_buf_fmt(out, "<circle class=\"dot s%u\" cx=\"%.2f\" cy=\"%.2f\" r=\"%.1f\"/>", colour, x,
                   y, r);
    else if (shape == 1)
        is_buf_fmt(out, "<path class=\"dot s%u\" d=\"M%.2f %.2fh8v8h-8z\"/>", colour, x - 4, y - 4);
    else if (shape == 2)
        is_buf_fmt(out, "<path class=\"dot s%u\" d=\"M%.2f %.2fl5 9h-10z\"/>", colour, x, y - 5.5);
    else if (shape == 3)
        is_buf_fmt(out, "<path class=\"dot s%u\" d=\"M%.2f %.2fl5.5 5.5l-5.5 5.5l-5.5 -5.5z\"/>",
                   colour, x, y - 5.5);
    else if (shape == 4)
        is_buf_fmt(out, "<path class=\"dot s%u\" d=\"M%.2f %.2fl5 -9h-10z\"/>", colour, x, y + 5.5);
    else if (shape == 5)
        is_buf_fmt(out, "<circle class=\"open s%u\" cx=\"%.2f\" cy=\"%.2f\" r=\"4\"/>", colour, x,
                   y);
    else if (shape == 6)
        is_buf_fmt(out, "<path class=\"open s%u\" d=\"M%.2f %.2fl8 8m0 -8l-8 8\"/>", colour, x - 4,
                   y - 4);
    else
        is_buf_fmt(out, "<path class=\"open s%u\" d=\"M%.2f %.2fv10m-5 -5h10\"/>", colour, x,
                   y - 5);
}
