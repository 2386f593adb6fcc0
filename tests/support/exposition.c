/* exposition.c - see exposition.h. Reads line by line; remembers all series, to find those that come twice. */
#include "support/exposition.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FAMILIES = 300, SERIES = 20000, NAME = 200, LABELS = 2000 };

typedef struct line {
    char name[NAME];
    char labels[LABELS];     /* without le */
    char le[40];             /* "" = none */
    double value;
} line;

typedef struct judge {
    char families[FAMILIES][NAME];
    size_t n_families;
    char help[NAME], family[NAME], type[20]; /* of the family whose lines may come now */
    char **seen;
    size_t n_seen;
    /* the histogram that is being read */
    char labels[LABELS];
    bool open, inf, sum;
    double last_le, last_count;
    char *why;
} judge;

static bool bad(judge *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static bool bad(judge *j, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(j->why, 256, fmt, ap);
    va_end(ap);
    return false;
}

static size_t name_length(const char *p, bool label)
{
    size_t n = 0;

    while (isalpha((unsigned char)p[n]) || p[n] == '_' || (!label && p[n] == ':') || (n && isdigit((unsigned char)p[n]))) n++;
    return n;
}

static bool parse_labels(judge *j, const char **at, line *l)
{
    const char *p = *at + 1;
    char known[20][NAME];
    size_t n_known = 0;

    while (*p != '}') {
        size_t n = name_length(p, true), v = 0;
        char name[NAME], value[1000];

        if (n == 0 || n >= NAME || p[n] != '=' || p[n + 1] != '"') return bad(j, "%s: labels are not name=\"value\"", l->name);
        snprintf(name, sizeof name, "%.*s", (int)n, p);
        for (p += n + 2; *p != '"'; p++) {
            if (*p == 0 || v + 3 > sizeof value) return bad(j, "%s: the value of %s does not end", l->name, name);
            if (*p == '\\') {
                if (!strchr("\\\"n", p[1]) || !p[1]) return bad(j, "%s: an escape that is none in %s", l->name, name);
                value[v++] = *p++;
            }
            value[v++] = *p;
        }
        value[v] = 0;
        p++;
        for (size_t i = 0; i < n_known; i++)
            if (strcmp(known[i], name) == 0) return bad(j, "%s: label %s twice", l->name, name);
        if (n_known == 20) return bad(j, "%s: too many labels", l->name);
        snprintf(known[n_known++], NAME, "%s", name);
        if (strcmp(name, "le") == 0) {
            if (v >= sizeof l->le) return bad(j, "%s: a long bound", l->name);
            memcpy(l->le, value, v + 1);
        } else {
            size_t have = strlen(l->labels);

            snprintf(l->labels + have, LABELS - have, "%s=\"%s\",", name, value);
        }
        if (*p == ',') p++;
        else if (*p != '}') return bad(j, "%s: no comma between labels", l->name);
    }
    *at = p + 1;
    return true;
}

static bool parse_number(const char *p, double *out)
{
    char *end;

    if (strcmp(p, "+Inf") == 0) return *out = INFINITY, true;
    if (strcmp(p, "NaN") == 0) return *out = NAN, true;
    if (!isdigit((unsigned char)*p) && *p != '-') return false;
    *out = strtod(p, &end);
    return *end == 0;
}

static bool parse(judge *j, const char *text, line *l)
{
    size_t n = name_length(text, false);
    const char *p = text + n;

    memset(l, 0, sizeof *l);
    if (n == 0 || n >= NAME) return bad(j, "no metric's name: %.80s", text);
    snprintf(l->name, NAME, "%.*s", (int)n, text);
    if (*p == '{' && !parse_labels(j, &p, l)) return false;
    if (*p++ != ' ') return bad(j, "%s: no space before the number", l->name);
    return parse_number(p, &l->value) || bad(j, "%s: \"%.40s\" is no number", l->name, p);
}

/* A histogram whose last line was read: was it whole? */
static bool close_histogram(judge *j)
{
    if (j->open) return bad(j, "%s{%s}: buckets without +Inf, _sum or _count", j->family, j->labels);
    return true;
}

static bool histogram_line(judge *j, const line *l)
{
    const char *suffix = l->name + strlen(j->family);

    if (strcmp(suffix, "_bucket") == 0) {
        double le;

        if (!l->le[0] || !parse_number(l->le, &le)) return bad(j, "%s: a bucket without a bound", l->name);
        if (!j->open) {
            snprintf(j->labels, LABELS, "%s", l->labels);
            j->open = true;
            j->inf = j->sum = false;
            j->last_le = -INFINITY;
            j->last_count = 0;
        }
        if (strcmp(j->labels, l->labels) != 0) return bad(j, "%s: series mixed", l->name);
        if (j->inf || le <= j->last_le) return bad(j, "%s: bounds do not rise at le=%s", l->name, l->le);
        if (l->value < j->last_count || l->value != floor(l->value)) return bad(j, "%s: not cumulative at le=%s", l->name, l->le);
        j->last_le = le;
        j->last_count = l->value;
        j->inf = isinf(le);
        return true;
    }
    if (!j->open || !j->inf || strcmp(j->labels, l->labels) != 0 || l->le[0]) return bad(j, "%s: out of place", l->name);
    if (strcmp(suffix, "_sum") == 0) return j->sum = true;
    if (strcmp(suffix, "_count") != 0) return bad(j, "%s: not of a histogram", l->name);
    if (!j->sum || l->value != j->last_count) return bad(j, "%s: is not the +Inf bucket, or _sum is missing", l->name);
    j->open = false;
    return true;
}

static bool once(judge *j, const line *l)
{
    char *s = NULL;

    if (asprintf(&s, "%s{%s}%s", l->name, l->labels, l->le) < 0) abort();
    for (size_t i = 0; i < j->n_seen; i++)
        if (strcmp(j->seen[i], s) == 0) {
            free(s);
            return bad(j, "%s{%s}: twice", l->name, l->labels);
        }
    if (j->n_seen == SERIES) abort();
    j->seen[j->n_seen++] = s;
    return true;
}

static bool sample(judge *j, const char *text)
{
    size_t n = strlen(j->family), t;
    line l;

    if (!parse(j, text, &l) || !once(j, &l)) return false;
    if (!n || strncmp(l.name, j->family, n) != 0) return bad(j, "%s: not below its HELP and TYPE", l.name);
    if (strcmp(j->type, "histogram") == 0) return histogram_line(j, &l);
    if (strcmp(l.name, j->family) != 0 || l.le[0]) return bad(j, "%s: not below its HELP and TYPE", l.name);
    t = strlen(l.name);
    if (strcmp(j->type, "counter") == 0) {
        if (t < 6 || strcmp(l.name + t - 6, "_total") != 0) return bad(j, "%s: a counter's name ends in _total", l.name);
        if (!(l.value >= 0)) return bad(j, "%s: a negative counter", l.name);
    } else if (t > 6 && strcmp(l.name + t - 6, "_total") == 0) {
        return bad(j, "%s: only a counter's name ends in _total", l.name);
    }
    return true;
}

static bool comment(judge *j, const char *text)
{
    char name[NAME], rest[200];

    if (sscanf(text, "# HELP %199s %199[^\n]", name, rest) == 2) {
        if (!close_histogram(j)) return false;
        for (size_t i = 0; i < j->n_families; i++)
            if (strcmp(j->families[i], name) == 0) return bad(j, "%s: HELP twice", name);
        if (j->n_families == FAMILIES) abort();
        snprintf(j->families[j->n_families++], NAME, "%s", name);
        snprintf(j->help, NAME, "%s", name);
        j->family[0] = 0;
        return true;
    }
    if (sscanf(text, "# TYPE %199s %19s", name, j->type) == 2) {
        if (strcmp(j->help, name) != 0 || j->family[0]) return bad(j, "%s: TYPE without HELP before it", name);
        if (strcmp(j->type, "counter") && strcmp(j->type, "gauge") && strcmp(j->type, "histogram")) return bad(j, "%s: type", name);
        snprintf(j->family, NAME, "%s", name);
        return true;
    }
    return bad(j, "a comment that is neither HELP nor TYPE: %.80s", text);
}

bool exposition_ok(const char *text, size_t len, char why[256])
{
    judge *j = calloc(1, sizeof *j);
    char *copy = malloc(len + 1), *save = NULL;
    bool ok;

    if (!j || !copy || !(j->seen = calloc(SERIES, sizeof *j->seen))) abort();
    why[0] = 0;
    j->why = why;
    memcpy(copy, text, len);
    copy[len] = 0;
    ok = len > 0 && text[len - 1] == '\n' && strlen(copy) == len;
    if (!ok) bad(j, "does not end with a line's end, or holds a NUL");
    for (char *p = strtok_r(copy, "\n", &save); ok && p; p = strtok_r(NULL, "\n", &save)) ok = *p == '#' ? comment(j, p) : sample(j, p);
    ok = ok && close_histogram(j);
    for (size_t i = 0; i < j->n_seen; i++) free(j->seen[i]);
    free(j->seen);
    free(copy);
    free(j);
    return ok;
}

double exposition_value(const char *text, const char *series)
{
    size_t n = strlen(series);

    for (const char *p = text; p; p = strchr(p, '\n'), p = p ? p + 1 : NULL)
        if (strncmp(p, series, n) == 0 && p[n] == ' ') return strtod(p + n, NULL);
    return NAN;
}

bool exposition_promtool(const char *text, size_t len, int *rc, char *report, size_t n)
{
    char in[] = "/tmp/exposition-XXXXXX", command[200];
    int fd = mkstemp(in);
    FILE *out;
    size_t got;

    if (fd < 0 || write(fd, text, len) != (ssize_t)len) abort();
    close(fd);
    snprintf(command, sizeof command, "promtool check metrics < %s 2>&1", in);
    out = popen(command, "r");
    if (!out) abort();
    got = fread(report, 1, n - 1, out);
    report[got] = 0;
    *rc = WEXITSTATUS(pclose(out));
    unlink(in);
    return *rc != 127;
}
