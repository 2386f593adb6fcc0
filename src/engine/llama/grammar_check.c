/* grammar_check.c - is this text a GBNF grammar that libllama will take?
 *
 * libllama prints a grammar that it cannot parse, whole, where nobody asked for it; and whoever sent it wants to know the line. So
 * it is read here first, by the same rules: NAME ::= sequences of "literals", [ranges], names, (groups) and dots, each perhaps with
 * * + ? {m,n}, with | between them. References to tokens (<...>) are not taken: control tokens are nobody's to name. */
#include "engine/llama/internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/sort.h"

enum { GRAMMAR_BYTES_MAX = 1 << 20, NESTED_MAX = 64, REPEAT_MAX = 2000 };

typedef struct is_name { const char *p; size_t n; } is_name;

typedef struct is_grammar_reader {
    const char *begin, *p;
    const char *why;         /* NULL while all is well */
    uint32_t depth;
    is_name *defined, *used; /* [cap] each: no more names than the text can hold */
    uint32_t n_defined, n_used;
} is_grammar_reader;

static bool wrong(is_grammar_reader *r, const char *why)
{
    if (!r->why) r->why = why;
    return false;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || is_digit(c); }

static void spaces(is_grammar_reader *r, bool newlines)
{
    while (*r->p == ' ' || *r->p == '\t' || *r->p == '#' || (newlines && (*r->p == '\r' || *r->p == '\n'))) {
        if (*r->p != '#') r->p++;
        else while (*r->p && *r->p != '\r' && *r->p != '\n') r->p++;
    }
}

static bool hex(is_grammar_reader *r, int n)
{
    for (int i = 0; i < n; i++, r->p++)
        if (!is_digit(*r->p) && !(*r->p >= 'a' && *r->p <= 'f') && !(*r->p >= 'A' && *r->p <= 'F')) return wrong(r, "hex digits are missing");
    return true;
}

static bool character(is_grammar_reader *r)
{
    if (!*r->p) return wrong(r, "it ends inside a literal or range");
    if (*r->p++ != '\\') {
        while ((*r->p & 0xc0) == 0x80) r->p++; /* the rest of a UTF-8 sequence */
        return true;
    }
    switch (*r->p) {
    case 'x': return r->p++, hex(r, 2);
    case 'u': return r->p++, hex(r, 4);
    case 'U': return r->p++, hex(r, 8);
    case 't': case 'r': case 'n': case '\\': case '"': case '[': case ']': case '-': return r->p++, true;
    default: return wrong(r, "an unknown escape follows a backslash");
    }
}

static bool literal(is_grammar_reader *r)
{
    for (r->p++; *r->p != '"';)
        if (!character(r)) return false;
    r->p++;
    return true;
}

static bool range(is_grammar_reader *r)
{
    r->p++;
    if (*r->p == '^') r->p++;
    while (*r->p != ']') {
        if (!character(r)) return false;
        if (r->p[0] == '-' && r->p[1] != ']') {
            r->p++;
            if (!character(r)) return false;
        }
    }
    r->p++;
    return true;
}

static bool number(is_grammar_reader *r, unsigned long *out)
{
    const char *from = r->p;

    while (is_digit(*r->p)) r->p++;
    if (r->p == from || r->p - from > 9) return wrong(r, "a number of repetitions is missing or too large");
    *out = strtoul(from, NULL, 10);
    return *out <= REPEAT_MAX || wrong(r, "there are more than 2000 repetitions");
}

/* After the opening brace. */
static bool braces(is_grammar_reader *r, bool nested)
{
    unsigned long least = 0, most = 0;

    r->p++;
    spaces(r, nested);
    if (!number(r, &least)) return false;
    spaces(r, nested);
    if (*r->p == ',') {
        r->p++;
        spaces(r, nested);
        if (is_digit(*r->p)) {
            if (!number(r, &most)) return false;
            if (most < least) return wrong(r, "a repetition ends below where it begins");
        }
        spaces(r, nested);
    }
    if (*r->p != '}') return wrong(r, "a } is missing");
    r->p++;
    return true;
}

static is_name name(is_grammar_reader *r)
{
    is_name n = { r->p, 0 };

    while (is_word(*r->p)) r->p++;
    n.n = (size_t)(r->p - n.p);
    return n;
}

static bool alternates(is_grammar_reader *r, bool nested);

static bool group(is_grammar_reader *r)
{
    if (++r->depth > NESTED_MAX) return wrong(r, "groups are nested too deeply");
    r->p++;
    spaces(r, true);
    if (!alternates(r, true)) return false;
    if (*r->p != ')') return wrong(r, "a ) is missing");
    r->p++;
    r->depth--;
    return true;
}

static bool sequence(is_grammar_reader *r, bool nested)
{
    for (bool something = false; *r->p; spaces(r, nested)) {
        char c = *r->p;

        if (c == '*' || c == '+' || c == '?' || c == '{') {
            if (!something) return wrong(r, "nothing stands before a repetition");
            if (c == '{') {
                if (!braces(r, nested)) return false;
            } else {
                r->p++;
            }
            continue;
        }
        if (c == '"') {
            if (!literal(r)) return false;
        } else if (c == '[') {
            if (!range(r)) return false;
        } else if (c == '(') {
            if (!group(r)) return false;
        } else if (c == '.') {
            r->p++;
        } else if (is_word(c)) {
            r->used[r->n_used++] = name(r);
        } else if (c == '<' || c == '!') {
            return wrong(r, "tokens cannot be named; write their text");
        } else {
            break;
        }
        something = true;
    }
    return true;
}

static bool alternates(is_grammar_reader *r, bool nested)
{
    if (!sequence(r, nested)) return false;
    while (*r->p == '|') {
        r->p++;
        spaces(r, true);
        if (!sequence(r, nested)) return false;
    }
    return true;
}

static bool rule(is_grammar_reader *r)
{
    if (!is_word(*r->p)) return wrong(r, "a rule's name is missing");
    r->defined[r->n_defined++] = name(r);
    spaces(r, false);
    if (strncmp(r->p, "::=", 3) != 0) return wrong(r, "::= is missing");
    r->p += 3;
    spaces(r, true);
    if (!alternates(r, false)) return false;
    if (*r->p && *r->p != '\r' && *r->p != '\n') return wrong(r, "a rule does not end where its line ends");
    spaces(r, true);
    return true;
}

static int by_text(const void *a, const void *b)
{
    const is_name *x = a, *y = b;
    int c = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);

    return c ? c : x->n < y->n ? -1 : x->n > y->n;
}

/* Every rule that is used is there, and the root. */
static bool names(is_grammar_reader *r)
{
    const is_name root = { "root", 4 };

    is_sort(r->defined, r->n_defined, sizeof *r->defined, by_text);
    if (!is_find(&root, r->defined, r->n_defined, sizeof root, by_text)) return wrong(r, "there is no rule 'root'");
    for (uint32_t i = 0; i < r->n_used; i++)
        if (!is_find(&r->used[i], r->defined, r->n_defined, sizeof root, by_text)) {
            r->p = r->used[i].p;
            return wrong(r, "a rule that is used here is not defined");
        }
    return true;
}

static uint32_t line_of(const is_grammar_reader *r)
{
    uint32_t n = 1;

    for (const char *c = r->begin; c < r->p; c++) n += *c == '\n';
    return n;
}

is_status is_grammar_check(const char *grammar)
{
    is_grammar_reader r = { .begin = grammar, .p = grammar };
    size_t len = strlen(grammar), most = len / 2 + 1; /* a name and what ends it */
    is_status st = INFERSCALE_OK;

    if (len > GRAMMAR_BYTES_MAX) return is_fail(INFERSCALE_E_PARSE, "the grammar has %zu bytes; use at most %d", len, GRAMMAR_BYTES_MAX);
    r.defined = is_malloc(most * sizeof *r.defined);
    r.used = is_malloc(most * sizeof *r.used);
    if (!r.defined || !r.used) {
        st = is_fail(INFERSCALE_E_NOMEM, "out of memory for a grammar of %zu bytes", len);
    } else {
        spaces(&r, true);
        while (*r.p && rule(&r)) continue;
        if (!r.why) names(&r);
        if (r.why)
            st = is_fail(INFERSCALE_E_PARSE, "the grammar does not parse: %s (line %u); write it in GBNF with a rule 'root'", r.why,
                         line_of(&r));
    }
    is_free(r.defined);
    is_free(r.used);
    return st;
}
