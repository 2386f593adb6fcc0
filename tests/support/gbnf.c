/* gbnf.c - parser, generator and recogniser for GBNF. */
#include "support/gbnf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/scratch.h"

enum { LITERAL, SET, RULE, SEQUENCE, CHOICE, REPEAT };
enum { RULES = 8192, TEXT = 4096, WORDS = TEXT / 64 + 1, FAR = 1 << 20 };

typedef struct node {
    int kind;
    uint32_t *chars;           /* LITERAL: code points; SET: pairs from, to */
    size_t n_chars;
    bool not_in;
    int rule;
    struct node **parts;       /* SEQUENCE, CHOICE, REPEAT (one) */
    size_t n_parts;
    unsigned least, most;      /* most 0 = no end */
    unsigned cost;             /* depth of its shortest text */
} node;

typedef struct rule { char name[32]; node *body; } rule;

struct gbnf {
    rule rules[RULES];
    int n_rules, root;
    const char *at;            /* while it is read */
};

/* ---- Reading ------------------------------------------------------------------------------------------------------------- */

static node *node_new(int kind)
{
    node *n = calloc(1, sizeof *n);
    assert_non_null(n);
    n->kind = kind;
    n->cost = FAR;
    return n;
}

static void add_part(node *n, node *part)
{
    n->parts = realloc(n->parts, (n->n_parts + 1) * sizeof *n->parts);
    assert_non_null(n->parts);
    n->parts[n->n_parts++] = part;
}

static void add_char(node *n, uint32_t c)
{
    n->chars = realloc(n->chars, (n->n_chars + 1) * sizeof *n->chars);
    assert_non_null(n->chars);
    n->chars[n->n_chars++] = c;
}

static void spaces(gbnf *g) { g->at += strspn(g->at, " "); }

static uint32_t hex(gbnf *g, int digits)
{
    char s[9] = "";
    memcpy(s, g->at, (size_t)digits);
    g->at += digits;
    return (uint32_t)strtoul(s, NULL, 16);
}

static uint32_t utf8_next(const char **p)
{
    const unsigned char *s = (const unsigned char *)*p;
    int n = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    uint32_t c = n == 1 ? s[0] : s[0] & (0xffu >> (n + 1));
    for (int i = 1; i < n; i++) c = c << 6 | (s[i] & 0x3f);
    *p += n;
    return c;
}

static uint32_t character(gbnf *g)
{
    if (*g->at != '\\') return utf8_next(&g->at);
    g->at += 2;
    switch (g->at[-1]) {
    case 'x': return hex(g, 2);
    case 'u': return hex(g, 4);
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case '\\': case '"': case '[': case ']': return (unsigned char)g->at[-1];
    default: fail_msg("unknown escape: %.20s", g->at - 2); return 0;
    }
}

static int rule_named(gbnf *g, const char *name, size_t n)
{
    for (int i = 0; i < g->n_rules; i++)
        if (strlen(g->rules[i].name) == n && memcmp(g->rules[i].name, name, n) == 0) return i;
    assert_true(g->n_rules < RULES && n < sizeof g->rules[0].name && n > 0);
    memcpy(g->rules[g->n_rules].name, name, n);
    return g->n_rules++;
}

static node *choice(gbnf *g);

static node *atom(gbnf *g)
{
    node *n;
    if (*g->at == '"') {
        n = node_new(LITERAL);
        for (g->at++; *g->at != '"'; add_char(n, character(g))) assert_true(*g->at && *g->at != '\n');
        g->at++;
    } else if (*g->at == '[') {
        n = node_new(SET);
        g->at++;
        if (*g->at == '^') n->not_in = true, g->at++;
        while (*g->at != ']') {
            assert_true(*g->at && *g->at != '\n');
            uint32_t from = character(g), to = from;
            if (*g->at == '-' && g->at[1] != ']') g->at++, to = character(g);
            add_char(n, from);
            add_char(n, to);
        }
        g->at++;
    } else if (*g->at == '(') {
        g->at++;
        n = choice(g);
        assert_int_equal(*g->at, ')');
        g->at++;
    } else {
        size_t len = strspn(g->at, "abcdefghijklmnopqrstuvwxyz0123456789-");
        if (!len) fail_msg("not GBNF: %.60s", g->at);
        n = node_new(RULE);
        n->rule = rule_named(g, g->at, len);
        g->at += len;
    }
    return n;
}

static node *repeated(gbnf *g)
{
    node *n = atom(g), *r;
    if (!*g->at || !strchr("?*+{", *g->at)) return n;
    r = node_new(REPEAT);
    add_part(r, n);
    char how = *g->at++;
    r->least = how == '+';
    r->most = how == '?';
    if (how != '{') return r;
    char *end;
    r->least = (unsigned)strtoul(g->at, &end, 10);
    r->most = r->least;
    if (*end == ',') {
        g->at = end + 1;
        r->most = (unsigned)strtoul(g->at, &end, 10);
        if (end != g->at) assert_true(r->most > 0 && r->most >= r->least);
    }
    assert_int_equal(*end, '}');
    g->at = end + 1;
    return r;
}

static node *choice(gbnf *g)
{
    node *c = node_new(CHOICE);
    for (;;) {
        node *s = node_new(SEQUENCE);
        for (spaces(g); *g->at && !strchr("|)\n", *g->at); spaces(g)) add_part(s, repeated(g));
        add_part(c, s);
        if (*g->at != '|') return c;
        g->at++;
    }
}

/* ---- Costs --------------------------------------------------------------------------------------------------------------- */

static unsigned cost_of(gbnf *g, node *n)
{
    unsigned cost = 0;
    switch (n->kind) {
    case RULE: cost = g->rules[n->rule].body->cost + 1; break;
    case SEQUENCE:
        for (size_t i = 0; i < n->n_parts; i++) {
            unsigned c = cost_of(g, n->parts[i]);
            cost = c > cost ? c : cost;
        }
        break;
    case CHOICE:
        cost = FAR;
        for (size_t i = 0; i < n->n_parts; i++) {
            unsigned c = cost_of(g, n->parts[i]);
            cost = c < cost ? c : cost;
        }
        break;
    case REPEAT: {
        unsigned c = cost_of(g, n->parts[0]);
        cost = n->least ? c : 0;
        break;
    }
    default: break;
    }
    return n->cost = cost > FAR ? FAR : cost;
}

gbnf *gbnf_read(const char *grammar)
{
    gbnf *g = calloc(1, sizeof *g);
    assert_non_null(g);
    g->at = grammar;
    while (*g->at) {
        size_t n = strcspn(g->at, " ");
        int r = rule_named(g, g->at, n);
        if (g->rules[r].body) fail_msg("rule %s is there twice", g->rules[r].name);
        g->at += n;
        assert_memory_equal(g->at, " ::=", 4);
        g->at += 4;
        g->rules[r].body = choice(g);
        assert_int_equal(*g->at, '\n');
        g->at++;
    }
    g->root = rule_named(g, "root", 4);
    for (int i = 0; i < g->n_rules; i++)
        if (!g->rules[i].body) fail_msg("rule %s is not there", g->rules[i].name);
    for (int again = 0; again < g->n_rules + 1; again++) {
        unsigned before = 0, after = 0;
        for (int i = 0; i < g->n_rules; i++) {
            before += g->rules[i].body->cost;
            after += cost_of(g, g->rules[i].body);
        }
        if (before == after) break;
    }
    assert_true(g->rules[g->root].body->cost < FAR);
    return g;
}

static void node_free(node *n)
{
    for (size_t i = 0; i < n->n_parts; i++) node_free(n->parts[i]);
    free(n->parts);
    free(n->chars);
    free(n);
}

void gbnf_free(gbnf *g)
{
    for (int i = 0; i < g->n_rules; i++) node_free(g->rules[i].body);
    free(g);
}

/* ---- Drawing ------------------------------------------------------------------------------------------------------------- */

typedef struct draw {
    const gbnf *g;
    unsigned long long *seed;
    unsigned left;
    FILE *out;
} draw;

static void put(FILE *f, uint32_t c)
{
    if (c < 0x80) fputc((int)c, f);
    else if (c < 0x800) fprintf(f, "%c%c", (int)(0xc0 | c >> 6), (int)(0x80 | (c & 63)));
    else if (c < 0x10000) fprintf(f, "%c%c%c", (int)(0xe0 | c >> 12), (int)(0x80 | (c >> 6 & 63)), (int)(0x80 | (c & 63)));
    else
        fprintf(f, "%c%c%c%c", (int)(0xf0 | c >> 18), (int)(0x80 | (c >> 12 & 63)), (int)(0x80 | (c >> 6 & 63)),
                (int)(0x80 | (c & 63)));
}

static bool in_set(const node *n, uint32_t c)
{
    bool in = false;
    for (size_t i = 0; i < n->n_chars; i += 2) in |= c >= n->chars[i] && c <= n->chars[i + 1];
    return in != n->not_in;
}

static uint32_t draw_char(const node *n, unsigned long long *seed)
{
    static const uint32_t odd[] = {
        'a', 'Z', '0', ' ', '\'', '/', '{', '}', ',', 0xe9, 0x65e5, 0x1f600, 0x7ff, 0xffff, '<', '|'
    };
    if (!n->not_in) {
        size_t i = 2 * scratch_below(seed, (unsigned)n->n_chars / 2);
        return n->chars[i] + scratch_below(seed, n->chars[i + 1] - n->chars[i] + 1);
    }
    for (;;) {
        uint32_t c = scratch_below(seed, 2) ? odd[scratch_below(seed, sizeof odd / sizeof *odd)] : 32 + scratch_below(seed, 95);
        if (in_set(n, c)) return c;
    }
}

static void draw_node(draw *d, const node *n)
{
    if (d->left) d->left--;
    switch (n->kind) {
    case LITERAL:
        for (size_t i = 0; i < n->n_chars; i++) put(d->out, n->chars[i]);
        break;
    case SET: put(d->out, draw_char(n, d->seed)); break;
    case RULE: draw_node(d, d->g->rules[n->rule].body); break;
    case SEQUENCE:
        for (size_t i = 0; i < n->n_parts; i++) draw_node(d, n->parts[i]);
        break;
    case CHOICE: {
        size_t pick = scratch_below(d->seed, (unsigned)n->n_parts);
        if (!d->left)
            for (size_t i = 0; i < n->n_parts; i++)
                if (n->parts[i]->cost < n->parts[pick]->cost) pick = i;
        draw_node(d, n->parts[pick]);
        break;
    }
    default: {
        unsigned more = n->most ? n->most - n->least : 20, times = n->least;
        if (d->left) times += scratch_below(d->seed, (more < 20 || scratch_below(d->seed, 8) == 0 ? more : 20) + 1);
        for (unsigned i = 0; i < times; i++) draw_node(d, n->parts[0]);
    }
    }
}

char *gbnf_draw(const gbnf *g, unsigned long long *seed, unsigned size)
{
    char *text = NULL;
    size_t n = 0;
    draw d = { g, seed, size, open_memstream(&text, &n) };
    assert_non_null(d.out);
    draw_node(&d, g->rules[g->root].body);
    fclose(d.out);
    return text;
}

/* ---- Following ----------------------------------------------------------------------------------------------------------- */

/* Sets of places in the text, as bits. */
typedef struct places { uint64_t w[WORDS]; } places;

static void set(places *p, size_t i) { p->w[i / 64] |= (uint64_t)1 << (i % 64); }
static bool has(const places *p, size_t i) { return p->w[i / 64] >> (i % 64) & 1; }
static bool none(const places *p)
{
    uint64_t all = 0;
    for (int i = 0; i < WORDS; i++) all |= p->w[i];
    return !all;
}

/* Where the node's texts may end, that begin at one of `from`. */
static void follow(const gbnf *g, const node *n, const char *text, size_t len, const places *from, places *to)
{
    places now = *from, next;
    memset(to, 0, sizeof *to);
    if (none(from)) return;
    switch (n->kind) {
    case LITERAL:
    case SET:
        for (size_t i = 0; i <= len; i++) {
            const char *p = text + i;
            bool fits = has(from, i);
            for (size_t j = 0; fits && j < (n->kind == SET ? 1 : n->n_chars); j++) {
                fits = p < text + len;
                if (fits) fits = n->kind == SET ? in_set(n, utf8_next(&p)) : utf8_next(&p) == n->chars[j];
            }
            if (fits) set(to, (size_t)(p - text));
        }
        break;
    case RULE: follow(g, g->rules[n->rule].body, text, len, from, to); break;
    case SEQUENCE:
        for (size_t i = 0; i < n->n_parts; i++) {
            follow(g, n->parts[i], text, len, &now, &next);
            now = next;
        }
        *to = now;
        break;
    case CHOICE:
        for (size_t i = 0; i < n->n_parts; i++) {
            follow(g, n->parts[i], text, len, from, &next);
            for (int j = 0; j < WORDS; j++) to->w[j] |= next.w[j];
        }
        break;
    default:
        for (unsigned i = 0; !none(&now); i++) {
            bool grew = false;
            if (i >= n->least)
                for (int j = 0; j < WORDS; j++) {
                    grew |= (now.w[j] & ~to->w[j]) != 0;
                    to->w[j] |= now.w[j];
                }
            if ((n->most && i == n->most) || (i >= n->least && !grew)) break;
            follow(g, n->parts[0], text, len, &now, &next);
            now = next;
        }
    }
}

bool gbnf_follows(const gbnf *g, const char *text)
{
    places from = { { 0 } }, to;
    size_t len = strlen(text);
    assert_true(len < TEXT);
    set(&from, 0);
    follow(g, g->rules[g->root].body, text, len, &from, &to);
    return has(&to, len);
}
