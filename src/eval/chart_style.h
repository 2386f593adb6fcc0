/* chart_style.h - how series look (private to chart*.c and the page). */
#ifndef IS_EVAL_CHART_STYLE_H
#define IS_EVAL_CHART_STYLE_H

#include <stddef.h>

#include "base/buf.h"

/* Styles 0 .. CHART_STYLES - 1 differ in colour, marker and dash; from there on in marker. */
enum { CHART_STYLES = 8 };

/* The style that this arm has in every plot; -1: whichever is free. */
int chart_style_known(const char *series);
/* A marker around (x, y), with the class of its colour. */
void chart_marker(is_buf *out, unsigned style, double x, double y);
const char *chart_dash(unsigned style); /* of stroke-dasharray; "" = solid */
/* The rules that colour a plot, light and dark. */
extern const char chart_css[];

#endif
