/* args.c - parsing of command lines against the verbs' tables, and typed access to what was parsed. */
#include "cli/args.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/nearest_name.h"
#include "base/utf8.h"

typedef struct given {
    const cli_option *option;
    const char *value;   /* "" for flags */
} given;

struct cli_args {
    const cli_verb *verb;
    const char **at;     /* positionals; borrowed from argv */
    size_t n;
    given *given;        /* the last one of a name counts */
    size_t n_given;
    bool help, json;
};

/* ---- Tables -------------------------------------------------------------------------------------------------------------- */

void cli_each_option(const cli_verb *verb, void (*each)(void *ctx, const cli_option *o, unsigned group), void *ctx)
{
    for (const cli_option *o = verb->options; o && o->name; o++) each(ctx, o, 0);
    for (unsigned g = 1; g <= CLI_JSON; g <<= 1) {
        if (!(verb->groups & g)) continue;
        for (const cli_option *o = cli_group_options(g); o && o->name; o++) each(ctx, o, g);
    }
}

typedef struct lookup {
    const char *name;
    size_t len;
    const cli_option *found;
} lookup;

static void lookup_one(void *ctx, const cli_option *o, unsigned group)
{
    lookup *l = ctx;
    if (!l->found && strlen(o->name) == l->len && memcmp(o->name, l->name, l->len) == 0) l->found = o;
}

/* One-letter options are written with one dash or two: -k is --k. */
static const cli_option *find_option(const cli_verb *verb, const char *name, size_t len)
{
    char other[4];
    lookup l = { name, len, NULL };
    cli_each_option(verb, lookup_one, &l);
    if (l.found || !((len == 2 && name[1] != '-') || (len == 3 && name[1] == '-'))) return l.found;
    snprintf(other, sizeof other, "%s%c", len == 2 ? "--" : "-", name[len - 1]);
    l = (lookup){ other, strlen(other), NULL };
    cli_each_option(verb, lookup_one, &l);
    return l.found;
}

const cli_verb *cli_find_verb(const cli_verb *const *verbs, int argc, char **argv, int *used)
{
    for (int words = 2; words >= 1; words--) {
        if (argc < words) continue;
        for (size_t i = 0; verbs[i]; i++) {
            const char *space = strchr(verbs[i]->name, ' ');
            if (words == 1 ? !space && strcmp(verbs[i]->name, argv[0]) == 0
                           : space && strlen(argv[0]) == (size_t)(space - verbs[i]->name) &&
                                 strncmp(verbs[i]->name, argv[0], strlen(argv[0])) == 0 && strcmp(space + 1, argv[1]) == 0) {
                *used = words;
                return verbs[i];
            }
        }
    }
    *used = 0;
    return NULL;
}

bool cli_is_group(const cli_verb *const *verbs, const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; verbs[i]; i++)
        if (strncmp(verbs[i]->name, word, n) == 0 && verbs[i]->name[n] == ' ') return true;
    return false;
}

/* ---- Did you mean -------------------------------------------------------------------------------------------------------- */

enum { WORD_MAX = IS_WORD_MAX };

const char *cli_nearest(const char *word, const char *const *names, size_t n) { return is_nearest_name(word, names, n); }

typedef struct name_list {
    const char *names[96];
    size_t n;
} name_list;

static void collect_name(void *ctx, const cli_option *o, unsigned group)
{
    name_list *l = ctx;
    if (l->n < sizeof l->names / sizeof *l->names) l->names[l->n++] = o->name;
}

/* What other programs call it. NULL: the verb has none of these. */
static const char *other_name(const char *word, const name_list *l)
{
    static const char *const same[][2] = { { "--date", "--time" }, { "--when", "--time" }, { "--event-time", "--time" },
                                           { "--timestamp", "--time" }, { "--expiration-date", "--expires" } };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        for (size_t k = 0; strcmp(word, same[i][0]) == 0 && k < l->n; k++)
            if (strcmp(l->names[k], same[i][1]) == 0) return same[i][1];
    return NULL;
}

static void unknown_option(const cli_verb *verb, const char *arg, size_t len, char *message, size_t cap)
{
    name_list l = { { "--help" }, 1 };
    char word[WORD_MAX + 1];
    const char *near = NULL;
    cli_each_option(verb, collect_name, &l);
    if (len <= WORD_MAX) {
        memcpy(word, arg, len);
        word[len] = '\0';
        near = other_name(word, &l);
        if (!near) near = cli_nearest(word, l.names, l.n);
    }
    if (near)
        snprintf(message, cap, "there is no option %.*s; did you mean %s?", (int)(len < 60 ? len : 60), arg, near);
    else
        snprintf(message, cap, "there is no option %.*s; text that begins with a dash goes after \"--\"",
                 (int)(len < 60 ? len : 60), arg);
}

void cli_unknown_verb(const cli_verb *const *verbs, int argc, char **argv, char *message, size_t cap)
{
    name_list l = { { "--help", "--version" }, 2 };
    char both[2 * WORD_MAX + 2];
    const char *near = NULL;
    bool is_group = cli_is_group(verbs, argv[0]);
    for (size_t i = 0; verbs[i]; i++)
        if (l.n < sizeof l.names / sizeof *l.names) l.names[l.n++] = verbs[i]->name;
    if (argc > 1 && strlen(argv[0]) <= WORD_MAX && strlen(argv[1]) <= WORD_MAX) {
        snprintf(both, sizeof both, "%s %s", argv[0], argv[1]);
        near = cli_nearest(both, l.names, l.n);
        if (near && !strchr(near, ' ')) near = NULL;
    }
    if (!near && !is_group) near = cli_nearest(argv[0], l.names, l.n);
    if (near) {
        snprintf(message, cap, "there is no command \"%.60s\"; did you mean \"%s\"?", argv[0], near);
    } else if (is_group) {
        size_t at = (size_t)snprintf(message, cap, "\"%s\" needs a second word:", argv[0]);
        for (size_t i = 0; verbs[i] && at < cap; i++)
            if (strncmp(verbs[i]->name, argv[0], strlen(argv[0])) == 0 && verbs[i]->name[strlen(argv[0])] == ' ')
                at += (size_t)snprintf(message + at, cap - at, " \"%s\"", verbs[i]->name);
    } else {
        snprintf(message, cap, "there is no command \"%.60s\"; `inferscale --help` lists them", argv[0]);
    }
}

/* ---- Parsing ------------------------------------------------------------------------------------------------------------- */

void cli_args_free(cli_args *a)
{
    if (!a) return;
    is_free(a->at);
    is_free(a->given);
    is_free(a);
}

static bool is_help(const char *s) { return strcmp(s, "--help") == 0 || strcmp(s, "-h") == 0; }

/* Whose memory it is, and where it is, is not guessed: --user "$NAME" of a script whose NAME is not set is a mistake. */
static bool must_say_something(const cli_option *o)
{
    for (const cli_option *s = cli_group_options(CLI_SCOPE); s && s->name; s++)
        if (s == o) return true;
    return strcmp(o->name, "--home") == 0;
}

/* One word that begins with a dash; *i advances over a value that stands apart. */
static int parse_option(cli_args *a, int argc, char **argv, int *i, char *message, size_t cap)
{
    const char *arg = argv[*i];
    const char *eq = strncmp(arg, "--", 2) == 0 ? strchr(arg, '=') : NULL;
    size_t len = eq ? (size_t)(eq - arg) : strlen(arg);
    const cli_option *o = find_option(a->verb, arg, len);
    const char *value = "";
    if (!o) {
        unknown_option(a->verb, arg, len, message, cap);
        return CLI_USAGE;
    }
    if (!o->arg && eq) {
        snprintf(message, cap, "%s takes no value; write just %s", o->name, o->name);
        return CLI_USAGE;
    }
    if (o->arg && eq) {
        value = eq + 1;
    } else if (o->arg) {
        if (*i + 1 >= argc) {
            snprintf(message, cap, "%s needs a value: %s %s", o->name, o->name, o->arg);
            return CLI_USAGE;
        }
        value = argv[++*i];
    }
    if (o->arg && must_say_something(o) && is_utf8_blank(value, strlen(value))) {
        snprintf(message, cap, "%s is empty; give a name, or leave the option out", o->name);
        return CLI_USAGE;
    }
    a->given[a->n_given++] = (given){ o, value };
    if (strcmp(o->name, "--json") == 0) a->json = true;
    return CLI_OK;
}

int cli_args_parse(const cli_verb *verb, int argc, char **argv, cli_args **out, char *message, size_t cap)
{
    size_t room = argc > 0 ? (size_t)argc : 1;
    cli_args *a = is_calloc(1, sizeof *a);
    int rc = CLI_OK;
    bool only_positionals = false;
    *out = NULL;
    if (a) {
        a->verb = verb;
        a->at = is_calloc(room, sizeof *a->at);
        a->given = is_calloc(room, sizeof *a->given);
    }
    if (!a || !a->at || !a->given) {
        snprintf(message, cap, "out of memory; close other programs and try again");
        cli_args_free(a);
        return CLI_USAGE;
    }
    for (int i = 0; i < argc && rc == CLI_OK; i++) {
        const char *s = argv[i];
        if (!is_utf8_valid(s, strlen(s), NULL)) {
            snprintf(message, cap, "argument %d is not valid UTF-8; convert it (for example with iconv)", i + 1);
            rc = CLI_USAGE;
        } else if (only_positionals || s[0] != '-' || s[1] == '\0') {
            a->at[a->n++] = s;
        } else if (strcmp(s, "--") == 0) {
            only_positionals = true;
        } else if (is_help(s)) {
            a->help = true;
        } else {
            rc = parse_option(a, argc, argv, &i, message, cap);
        }
    }
    if (rc != CLI_OK) {
        cli_args_free(a);
        return rc;
    }
    *out = a;
    return CLI_OK;
}

bool cli_blank(const char *s) { return is_utf8_blank(s, strlen(s)); }
bool cli_has(const cli_args *a, const char *option) { return find_option(a->verb, option, strlen(option)) != NULL; }
bool cli_wants_help(const cli_args *a) { return a->help; }
bool cli_wants_json(const cli_args *a) { return a->json; }

/* ---- Values -------------------------------------------------------------------------------------------------------------- */

bool cli_parse_int(const char *s, int64_t *out)
{
    char *end = NULL;
    if (!(*s == '-' || (*s >= '0' && *s <= '9'))) return false;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno || end == s || *end) return false;
    *out = v;
    return true;
}

bool cli_parse_num(const char *s, double *out)
{
    char *end = NULL;
    if (!(*s == '-' || *s == '.' || (*s >= '0' && *s <= '9')) || strpbrk(s, "xX")) return false;
    errno = 0;
    double v = strtod(s, &end);
    if (errno || end == s || *end || !isfinite(v)) return false;
    *out = v;
    return true;
}

bool cli_parse_size(const char *s, uint64_t *out)
{
    static const char units[] = "KMGT";
    char *end = NULL;
    unsigned shift = 0;
    if (!(*s >= '0' && *s <= '9')) return false;
    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    if (errno || end == s) return false;
    if (*end) {
        const char *u = strchr(units, *end >= 'a' && *end <= 'z' ? *end - 'a' + 'A' : *end);
        if (!u) return false;
        shift = 10u * (unsigned)(u - units + 1);
        end++;
        if (strcmp(end, "iB") == 0) end += 2;
    }
    if (*end || (shift && v > (UINT64_MAX >> shift))) return false;
    *out = (uint64_t)v << shift;
    return true;
}

/* ---- Typed access -------------------------------------------------------------------------------------------------------- */

/* The value given for option, NULL if it was not. Asking for an option that the verb does not have is our own mistake. */
static const char *value_of(const cli_args *a, const char *option)
{
    const char *value = NULL;
    const cli_option *o = find_option(a->verb, option, strlen(option));
    if (!o) {
        cli_fail_msg(a, "internal error: \"%s\" reads %s, which is not in its table; please report it", a->verb->name, option);
        exit(CLI_FAILED);
    }
    for (size_t i = 0; i < a->n_given; i++)
        if (a->given[i].option == o) value = a->given[i].value;
    return value;
}

const char *cli_str(const cli_args *a, const char *option, const char *fallback)
{
    const char *v = value_of(a, option);
    return v ? v : fallback;
}

bool cli_flag(const cli_args *a, const char *option) { return value_of(a, option) != NULL; }

int64_t cli_int(const cli_args *a, const char *option, int64_t fallback, int64_t min, int64_t max)
{
    const char *v = value_of(a, option);
    int64_t x;
    if (!v) return fallback;
    if (!cli_parse_int(v, &x) || x < min || x > max)
        exit(cli_usage(a, "%s must be a whole number from %lld to %lld, not \"%.40s\"", option, (long long)min, (long long)max,
                       v));
    return x;
}

double cli_num(const cli_args *a, const char *option, double fallback, double min, double max)
{
    const char *v = value_of(a, option);
    double x;
    if (!v) return fallback;
    if (!cli_parse_num(v, &x) || x < min || x > max)
        exit(cli_usage(a, "%s must be a number from %g to %g, not \"%.40s\"", option, min, max, v));
    return x;
}

size_t cli_int_list(const cli_args *a, const char *option, const char *fallback, int64_t *out, size_t max)
{
    const char *v = value_of(a, option);
    const char *s = v ? v : fallback;
    size_t n = 0;
    while (s && *s) {
        char word[24];
        size_t len = strcspn(s, ",");
        if (len >= sizeof word || n >= max)
            exit(cli_usage(a, "%s takes at most %zu numbers with commas between, e.g. %s 0,5,10", option, max, option));
        memcpy(word, s, len);
        word[len] = '\0';
        if (!cli_parse_int(word, &out[n++]))
            exit(cli_usage(a, "%s takes whole numbers with commas between, e.g. %s 0,5,10; \"%s\" is none", option, option,
                           word));
        s += len;
        if (*s == ',' && *++s == '\0') exit(cli_usage(a, "%s ends with a comma; a number is missing after it", option));
    }
    if (n == 0) exit(cli_usage(a, "%s needs at least one number, e.g. %s 0,5,10", option, option));
    return n;
}

size_t cli_n(const cli_args *a) { return a->n; }
const char *cli_at(const cli_args *a, size_t i) { return i < a->n ? a->at[i] : NULL; }
const cli_verb *cli_current(const cli_args *a) { return a->verb; }
