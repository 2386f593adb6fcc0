/* chart.h - a plot with numbers on it, drawn as SVG: lines over a numeric axis (time against k), or
 * one row a name with a dot in it (order ratio by policy). Series have colours that colour-blind
 * people can tell apart (Okabe and Ito's), and differ in marker and dash as well. */
#ifndef IS_EVAL_CHART_H
#define IS_EVAL_CHART_H

#include "base/buf.h"
#include "base/status.h"

enum { CHART_SERIES = 24, CHART_ROWS = 64, CHART_POINTS = 256, CHART_TEXT = 200, CHART_MORE = 2 };

typedef enum chart_kind {
    CHART_LINES, /* x across, the value upwards */
    CHART_DOTS   /* names downwards, the value across; x = the index of the name */
} chart_kind;

typedef struct chart_point {
    double x, value, lo, hi; /* lo, hi NaN: no interval */
    double n;                /* how many the value is of; NaN: not said */
    double more[CHART_MORE]; /* the table's further numbers; NaN: none */
} chart_point;

typedef struct chart_series {
    char name[CHART_TEXT];
    chart_point *points; /* [n] in the order of x */
    size_t n;
    unsigned style; /* chart_end sets it */
} chart_series;

typedef struct chart_axis {
    char title[CHART_TEXT]; /* with its unit */
    bool log;
    bool whole; /* log axis: 10, 100, ... and no ticks between */
} chart_axis;

typedef struct chart {
    chart_kind kind;
    char id[96]; /* file name without ".svg" */
    char title[CHART_TEXT], subtitle[CHART_TEXT];
    chart_axis x, value;
    char unit[16]; /* lines: of x, where there is only one: "users" */
    double mark; /* a line across all at this value, named mark_name; NaN: none */
    char mark_name[64];
    char interval[CHART_TEXT]; /* what lo and hi are; "": there are none */
    char more[CHART_MORE][64]; /* head the table's further numbers; "": none */
    char *rows[CHART_ROWS];    /* [n_rows] names; owned */
    size_t n_rows;
    chart_series series[CHART_SERIES];
    size_t n_series;
    size_t n_left_out; /* points that had no room, or no value that the axis can show */
} chart;

/* The series called name, made if it is not there; NULL: no room, or no memory. */
chart_series *chart_series_of(chart *c, const char *name);
/* The index of the row called name, made if it is not there; -1: no room, or no memory. */
int chart_row_of(chart *c, const char *name);
/* Adds a point. What is not finite, or not above 0 on a logarithmic axis, is left out and
 * counted. */
is_status chart_add(chart *c, const char *series, chart_point p);
/* Once, after the last point: puts points in order, gives series their styles, and drops rows
 * without a point. Lines over a single x become dots in a row ("8 users"). */
void chart_end(chart *c);
bool chart_is_empty(const chart *c);
void chart_free(chart *c); /* what it holds, not the chart itself */

/* Appends the plot. Well-formed XML, whatever stands in the names. */
void chart_svg(const chart *c, is_buf *out);

/* Text for HTML and XML, in elements and in quoted attributes: & < > " ' are named, control
 * characters and those that turn the direction of writing become U+FFFD. s: UTF-8. */
void chart_escape(is_buf *out, const char *s);
/* A number to be read: three digits that count, or the whole number; no exponent from 0.0001 to 10
 * million. */
void chart_number(char out[32], double x);

#endif
