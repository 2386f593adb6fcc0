/* config.c - settings from the table: defaults, the file, the environment, flags. */
#include "serve/config.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/nearest_name.h"
#include "base/utf8.h"
#include "base/url.h"

typedef enum kind { TEXT, COUNT, SIZE, SWITCH, NUMBER, CHOICE, SECRET } kind;

typedef struct setting {
    const char *name, *fallback, *choices;
    kind kind;
    size_t at;
    int64_t min, max;
} setting;

static const setting table[IS_N_SETTINGS] = {
#define IS_X(field, flag, kind, arg, fallback, min, max, choices, help) \
    { #field, fallback, choices, kind, offsetof(is_config, field), min, max },
    IS_CONFIG_MAP(IS_X, IS_X)
#undef IS_X
};

enum { FILE_MAX = 1 << 20, VALUE_MAX = 64 << 10, PARALLEL_REMOTE = 32 };

const char *is_config_name(enum is_setting_id id) { return table[id].name; }
bool is_config_secret(enum is_setting_id id) { return table[id].kind == SECRET; }

/* ---- One value ----------------------------------------------------------------------------------------------------------- */

static is_status wrong(const setting *s, const char *takes, const char *value)
{
    if (s->kind == SECRET) return is_fail(INFERSCALE_E_INVALID, "%s takes %s", s->name, takes);
    return is_fail(INFERSCALE_E_INVALID, "%s takes %s, not \"%.60s\"", s->name, takes, value);
}

static is_status take_count(is_config *c, const setting *s, const char *v)
{
    char takes[80], *end;
    errno = 0;
    long long x = strtoll(v, &end, 10);
    snprintf(takes, sizeof takes, "a number from %" PRId64 " to %" PRId64, s->min, s->max);
    if (!isdigit((unsigned char)*v) || *end || errno || x < s->min || x > s->max) return wrong(s, takes, v);
    *(uint32_t *)((char *)c + s->at) = (uint32_t)x;
    return INFERSCALE_OK;
}

/* "512M", "2G", "1048576": powers of 1,024. */
static is_status take_size(is_config *c, const setting *s, const char *v)
{
    static const char units[] = "KMGT";
    char takes[120], *end;
    errno = 0;
    unsigned long long x = strtoull(v, &end, 10);
    const char *u = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    unsigned shift = u ? 10 * (unsigned)(u - units + 1) : 0;
    bool ok =
        isdigit((unsigned char)*v) && !errno && (*end == '\0' || (u && end[1] == '\0')) && x <= (uint64_t)INT64_MAX >> shift;
    x <<= ok ? shift : 0;
    snprintf(takes, sizeof takes, "a size such as 512M or 2G, from %" PRId64 " bytes%s", s->min,
             s->max == 1 << 30 ? " to 1G" : "");
    if (!ok || x < (uint64_t)s->min || x > (uint64_t)s->max) return wrong(s, takes, v);
    *(uint64_t *)((char *)c + s->at) = x;
    return INFERSCALE_OK;
}

static is_status take_switch(is_config *c, const setting *s, const char *v)
{
    static const char *const on[] = { "on", "true", "yes", "1" }, *const off[] = { "off", "false", "no", "0" };
    for (size_t i = 0; i < 4; i++) {
        if (strcasecmp(v, on[i]) != 0 && strcasecmp(v, off[i]) != 0) continue;
        *(bool *)((char *)c + s->at) = strcasecmp(v, on[i]) == 0;
        return INFERSCALE_OK;
    }
    return wrong(s, "on or off", v);
}

static is_status take_number(is_config *c, const setting *s, const char *v)
{
    char takes[80], *end;
    double x = strtod(v, &end);
    snprintf(takes, sizeof takes, "a number from %" PRId64 " to %" PRId64, s->min, s->max);
    if (!*v || *end || strspn(v, "0123456789.eE+-") != strlen(v) || !(x >= (double)s->min && x <= (double)s->max))
        return wrong(s, takes, v);
    *(double *)((char *)c + s->at) = x;
    return INFERSCALE_OK;
}

static is_status take_text(is_config *c, const setting *s, const char *v)
{
    char **to = (char **)((char *)c + s->at), *copy;
    if (strlen(v) > VALUE_MAX) return wrong(s, "at most 64 KiB", "...");
    if (!is_utf8_valid(v, strlen(v), NULL)) return wrong(s, "UTF-8 text", "...");
    copy = is_strdup(v);
    if (!copy) return is_fail(INFERSCALE_E_NOMEM, "out of memory; close other programs and try again");
    is_free(*to);
    *to = copy;
    return INFERSCALE_OK;
}

static is_status take_choice(is_config *c, const setting *s, const char *v)
{
    size_t n = strlen(v);
    char takes[80];
    if (!n && !*s->fallback) return take_text(c, s, v); /* unset */
    for (const char *p = s->choices; *p; p += strcspn(p, "|"), p += *p == '|')
        if (strcspn(p, "|") == n && strncmp(p, v, n) == 0) return take_text(c, s, v);
    snprintf(takes, sizeof takes, "one of %s", s->choices);
    return wrong(s, takes, v);
}

static is_status take(is_config *c, const setting *s, const char *v)
{
    switch (s->kind) {
    case COUNT:
        return take_count(c, s, v);
    case SIZE:
        return take_size(c, s, v);
    case SWITCH:
        return take_switch(c, s, v);
    case NUMBER:
        return take_number(c, s, v);
    case CHOICE:
        return take_choice(c, s, v);
    default:
        return take_text(c, s, v);
    }
}

/* "max-body" and "max_body" are the same name. */
static int find(const char *name)
{
    for (int i = 0; i < IS_N_SETTINGS; i++) {
        const char *a = table[i].name, *b = name;
        while (*a && (*a == *b || (*a == '_' && *b == '-'))) a++, b++;
        if (*a == '\0' && *b == '\0') return i;
    }
    return -1;
}

static const char *near(const char *name)
{
    const char *names[IS_N_SETTINGS];
    for (int i = 0; i < IS_N_SETTINGS; i++) names[i] = table[i].name;
    return is_nearest_name(name, names, IS_N_SETTINGS);
}

is_status is_config_set(is_config *c, const char *name, const char *value, is_set_by by, uint32_t line)
{
    int i = find(name);
    const char *maybe;
    if (i < 0) {
        maybe = near(name);
        if (maybe) return is_fail(INFERSCALE_E_INVALID, "there is no setting \"%.60s\"; did you mean %s?", name, maybe);
        return is_fail(INFERSCALE_E_INVALID, "there is no setting \"%.60s\"; `inferscale serve --help` lists them", name);
    }
    if (by < c->from[i].by) return INFERSCALE_OK;
    IS_TRY(take(c, &table[i], value));
    c->from[i].by = by;
    c->from[i].line = line;
    return INFERSCALE_OK;
}

is_status is_config_init(is_config *c)
{
    memset(c, 0, sizeof *c);
    for (int i = 0; i < IS_N_SETTINGS; i++) {
        is_status st = take(c, &table[i], table[i].fallback);
        if (st != INFERSCALE_OK) {
            is_config_free(c);
            return st;
        }
    }
    return INFERSCALE_OK;
}

static bool is_string(const setting *s) { return s->kind == TEXT || s->kind == CHOICE || s->kind == SECRET; }

void is_config_free(is_config *c)
{
    for (int i = 0; i < IS_N_SETTINGS; i++)
        if (is_string(&table[i])) is_free(*(char **)((char *)c + table[i].at));
    memset(c, 0, sizeof *c);
}

char *is_config_value(const is_config *c, enum is_setting_id id)
{
    const setting *s = &table[id];
    const char *at = (const char *)c + s->at;
    char text[64];
    if (is_string(s)) return is_strdup(*(char *const *)at);
    if (s->kind == COUNT) {
        snprintf(text, sizeof text, "%" PRIu32, *(const uint32_t *)at);
    } else if (s->kind == SWITCH) {
        snprintf(text, sizeof text, "%s", *(const bool *)at ? "on" : "off");
    } else if (s->kind == NUMBER) {
        snprintf(text, sizeof text, "%g", *(const double *)at);
    } else {
        uint64_t x = *(const uint64_t *)at;
        unsigned u = 0;
        for (; u < 4 && x && x % 1024 == 0; u++) x /= 1024;
        snprintf(text, sizeof text, "%" PRIu64 "%.1s", x, u ? &"KMGT"[u - 1] : "");
    }
    return is_strdup(text);
}

/* ---- The file ------------------------------------------------------------------------------------------------------------ */

typedef struct sink {
    is_config_error fn;
    void *ctx;
    is_status first;
    char sentence[1024]; /* of the first error: it is this thread's last one in the end */
} sink;

static void report(sink *k, is_status st, const char *sentence)
{
    if (k->first == INFERSCALE_OK) {
        k->first = st;
        snprintf(k->sentence, sizeof k->sentence, "%.1023s", sentence);
    }
    if (k->fn) k->fn(k->ctx, sentence);
}

static is_status result(const sink *k)
{
    return k->first == INFERSCALE_OK ? INFERSCALE_OK : is_fail(k->first, "%s", k->sentence);
}

/* "..." with \" \\ \n \t; what stands behind the quote must be nothing or a comment. In place. */
static is_status unquote(char *v)
{
    char *to = v, *p = v + 1;
    for (; *p && *p != '"'; p++) {
        if (*p != '\\') {
            *to++ = *p;
            continue;
        }
        p++;
        if (*p != 'n' && *p != 't' && *p != '"' && *p != '\\')
            return is_fail(INFERSCALE_E_PARSE, "after a backslash come n, t, \" or \\");
        *to++ = *p == 'n' ? '\n' : *p == 't' ? '\t' : *p;
    }
    if (*p != '"') return is_fail(INFERSCALE_E_PARSE, "a quote is not closed");
    p += 1 + strspn(p + 1, " \t");
    if (*p && *p != '#') return is_fail(INFERSCALE_E_PARSE, "there is text behind the closing quote");
    *to = '\0';
    return INFERSCALE_OK;
}

static void trim(char *s)
{
    size_t n = strlen(s);
    while (n && isspace((unsigned char)s[n - 1])) s[--n] = '\0';
}

static is_status one_line(is_config *c, char *s, uint32_t line, uint32_t seen[IS_N_SETTINGS])
{
    char *eq, *v;
    int i;
    s += strspn(s, " \t");
    trim(s);
    if (*s == '\0' || *s == '#') return INFERSCALE_OK;
    if (*s == '[') return is_fail(INFERSCALE_E_PARSE, "there are no sections; write only `name = value` lines");
    eq = strchr(s, '=');
    if (!eq) return is_fail(INFERSCALE_E_PARSE, "\"%.60s\" is no `name = value`", s);
    *eq = '\0';
    trim(s);
    v = eq + 1 + strspn(eq + 1, " \t");
    if (*v == '"') IS_TRY(unquote(v));
    i = find(s);
    if (i >= 0 && seen[i]) return is_fail(INFERSCALE_E_PARSE, "%s was set in line %" PRIu32 " already", table[i].name, seen[i]);
    if (i >= 0) seen[i] = line;
    return is_config_set(c, s, v, IS_BY_FILE, line);
}

is_status is_config_text(is_config *c, const char *path, char *text, size_t n, is_config_error on_error, void *ctx)
{
    sink k = { .fn = on_error, .ctx = ctx };
    uint32_t seen[IS_N_SETTINGS] = { 0 }, line = 1;
    char sentence[1400];
    size_t at;
    if (!is_utf8_valid(text, n, &at)) {
        for (size_t i = 0; i < at; i++) line += text[i] == '\n';
        snprintf(sentence, sizeof sentence, "%s, line %" PRIu32 ": it is not UTF-8 text, or has a NUL in it", path, line);
        report(&k, INFERSCALE_E_PARSE, sentence);
        return result(&k);
    }
    for (char *p = text, *end; p; p = end ? end + 1 : NULL, line++) {
        end = memchr(p, '\n', n - (size_t)(p - text));
        if (end) *end = '\0';
        is_status st = one_line(c, p, line, seen);
        if (st == INFERSCALE_OK) continue;
        snprintf(sentence, sizeof sentence, "%s, line %" PRIu32 ": %s", path, line, is_error());
        report(&k, INFERSCALE_E_PARSE, sentence);
    }
    return result(&k);
}

is_status is_config_file(is_config *c, const char *path, is_config_error on_error, void *ctx)
{
    uint8_t *text = NULL;
    size_t n = 0;
    is_status st = is_file_read_all(is_fs_posix(), path, FILE_MAX, &text, &n);
    if (st != INFERSCALE_OK) {
        if (on_error) on_error(ctx, is_error());
        return st;
    }
    st = is_config_text(c, path, (char *)text, n, on_error, ctx);
    is_free(text);
    return st;
}

is_status is_config_environment(is_config *c, char **environment, is_config_error on_error, void *ctx)
{
    sink k = { .fn = on_error, .ctx = ctx };
    char name[64], sentence[1400];
    for (int i = 0; i < IS_N_SETTINGS; i++) {
        size_t n = (size_t)snprintf(name, sizeof name, "INFERSCALE_%s", table[i].name);
        for (size_t j = 0; j < n; j++) name[j] = (char)toupper((unsigned char)name[j]);
        for (char **e = environment; e && *e; e++) {
            if (strncmp(*e, name, n) != 0 || (*e)[n] != '=' || (*e)[n + 1] == '\0') continue; /* empty = not set */
            if (is_config_set(c, table[i].name, *e + n + 1, IS_BY_VARIABLE, 0) == INFERSCALE_OK) continue;
            snprintf(sentence, sizeof sentence, "%s: %s", name, is_error());
            report(&k, INFERSCALE_E_INVALID, sentence);
        }
    }
    return result(&k);
}

/* ---- All together -------------------------------------------------------------------------------------------------------- */

uint32_t is_config_parallel(const is_config *c)
{
    const bool remote = strcmp(c->engine, "vllm") == 0;

    return remote && c->from[IS_SET_parallel].by == IS_BY_DEFAULT ? PARALLEL_REMOTE : c->parallel;
}

bool is_config_local(const is_config *c)
{
    const char *h = c->host;
    return strcmp(h, "localhost") == 0 || strcmp(h, "::1") == 0 ||
           (strncmp(h, "127.", 4) == 0 && strspn(h, "0123456789.") == strlen(h));
}

is_status is_config_check(const is_config *c, is_config_error on_error, void *ctx)
{
    sink k = { .fn = on_error, .ctx = ctx };
    char sentence[400];
    if (!*c->host) report(&k, INFERSCALE_E_INVALID, "host is empty; 127.0.0.1 is this machine alone");
    if (*c->host && !is_config_local(c) && !*c->keys) {
        snprintf(sentence, sizeof sentence,
                 "host %.100s can be reached by others, who could read and change all memory: name a file of API "
                 "keys by --keys, or listen on 127.0.0.1",
                 c->host);
        report(&k, INFERSCALE_E_DENIED, sentence);
    }
    if (strcmp(c->engine, "vllm") == 0 && !*c->upstream)
        report(&k, INFERSCALE_E_INVALID, "engine vllm computes on servers of its own; say where they are: upstream = http://HOST:PORT[,...]");
    if (strcmp(c->engine, "vllm") == 0 && *c->upstream && is_urls_check(c->upstream) != INFERSCALE_OK) {
        snprintf(sentence, sizeof sentence, "upstream: %.380s", is_error());
        report(&k, INFERSCALE_E_INVALID, sentence);
    }
    if (strcmp(c->engine, "vllm") != 0 && *c->upstream && c->from[IS_SET_upstream].by != IS_BY_VARIABLE)
        report(&k, INFERSCALE_E_INVALID, "upstream is what engine vllm computes on; add engine = vllm, or drop it");
    if (!(c->encode_share > 0 && c->encode_share <= c->encode_share_most && c->encode_share_most < 1))
        report(&k, INFERSCALE_E_INVALID,
               "encode_share is above 0 and at most encode_share_most, which is below 1: questions need the rest");
    if (!*c->tls_cert != !*c->tls_key)
        report(&k, INFERSCALE_E_INVALID, "tls_cert and tls_key belong together; give both, or neither");
    if (*c->cors && strcmp(c->cors, "*") == 0 && !*c->keys)
        report(&k, INFERSCALE_E_DENIED,
               "cors = * without keys lets every page of every browser here use all memory; name one origin, or set keys");
    if (*c->cors && strcmp(c->cors, "*") != 0 && (!strstr(c->cors, "://") || strchr(strstr(c->cors, "://") + 3, '/')))
        report(&k, INFERSCALE_E_INVALID, "cors is an origin such as https://app.example, without a path");
    return result(&k);
}
