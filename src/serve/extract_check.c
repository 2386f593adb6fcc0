/* extract_check.c - what a model says it found, read and doubted. What it says comes from the network or from a small model: nothing is
 * taken that does not stand in the user's own lines. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "serve/extract_in.h"

enum { SHORTEST = 8, LONGEST = 300, WORD = 64, STEM = 5, STEM_WIDE = 6, REPLY_MAX = 256 << 10 };

const char *const extract_faults[N_FAULTS] = {
    "unreadable", "too_short", "too_long", "no_words", "not_self_contained", "not_in_dialogue", "invented_number", "copied_prompt", "twice",
    "forgotten", "too_many",
};

/* ---- Words ----------------------------------------------------------------------------------------------------------------- */

static bool in_word(char c)
{
    return isalnum((unsigned char)c) || (unsigned char)c >= 0x80;
}

/* The next word from *p on, in small letters, at most WORD - 1 bytes of it; false = there is none. */
static bool next_word(const char **p, char word[WORD])
{
    size_t n = 0;

    while (**p && !in_word(**p)) ++*p;
    for (; in_word(**p); ++*p)
        if (n + 1 < WORD) word[n++] = (char)tolower((unsigned char)**p);
    word[n] = 0;
    return n > 0;
}

/* Words that carry no meaning of their own. */
static bool is_common(const char *w)
{
    static const char *const common[] = {
        "user", "that", "this", "with", "have", "from", "they", "their", "about", "will", "been", "were", "which", "when", "where", "what",
        "there", "these", "those", "would", "could", "should", "also", "than", "then", "them", "into", "very", "more", "some", "does", "doing",
        "person", "named", "called", "name", "mentioned", "said", "says", "stated", "assistant", "who", "has", "had", "and", "the", "for", "was",
        "are", "his", "her", "its", "not", "she", "him", "you", "your", NULL,
    };

    for (const char *const *c = common; *c; c++)
        if (strcmp(*c, w) == 0) return true;
    return false;
}

static bool is_content(const char *w)
{
    return !isdigit((unsigned char)w[0]) && strlen(w) >= 3 && !is_common(w);
}

/* The beginning that a word shares with its other forms; of scripts without letters as ours, two characters. */
static void stem(char w[WORD])
{
    size_t most = (unsigned char)w[0] >= 0x80 ? STEM_WIDE : STEM;

    if (strlen(w) > most) {
        w[most] = 0;
        w[is_utf8_whole(w, most)] = 0;
    }
}

/* Is there a word in text that begins so? In scripts that put no spaces between words: does it stand there at all? */
static bool has_stem(const char *text, const char *s)
{
    char word[WORD];

    if ((unsigned char)s[0] >= 0x80) return strstr(text, s) != NULL;
    while (next_word(&text, word))
        if (strncmp(word, s, strlen(s)) == 0) return true;
    return false;
}

bool extract_related(const char *a, const char *b)
{
    char word[WORD];

    while (next_word(&a, word)) {
        if (!is_content(word)) continue;
        stem(word);
        if (has_stem(b, word)) return true;
    }
    return false;
}

/* ---- What can be said against a fact --------------------------------------------------------------------------------------- */

/* Who or what it is about must be named in it. */
static bool stands_alone(const char *text)
{
    static const char *const leaning[] = { "i", "my", "we", "our", "you", "your", "he", "she", "it", "they", "this", "that", "these", "those",
                                           "me", "his", "her", "their", "its", NULL };
    char word[WORD];

    if (!next_word(&text, word)) return false;
    for (const char *const *l = leaning; *l; l++)
        if (strcmp(*l, word) == 0) return false;
    return true;
}

/* Words of the fact that stand in one of the user's lines (or are a speaker's name), and all of them. */
static void count_said(const char *text, const extract_line *lines, size_t n, unsigned *said, unsigned *all)
{
    char word[WORD];

    *said = *all = 0;
    while (next_word(&text, word)) {
        bool there = false;

        if (!is_content(word)) continue;
        stem(word);
        for (size_t i = 0; i < n && !there; i++) there = lines[i].is_user && (has_stem(lines[i].text, word) || has_stem(lines[i].who, word));
        *said += there;
        ++*all;
    }
}

/* Months come from dates that the model worked out; they count as said. */
static bool is_of_a_date(const char *digits, size_t n, int64_t when)
{
    char year[32];
    long v = strtol(digits, NULL, 10);

    is_date_iso(when, year);
    return (n <= 2 && v >= 1 && v <= 31) || (n == 4 && labs(v - strtol(year, NULL, 10)) <= 1);
}

/* Every number stands in a user's line, or can be of a date near the conversation's. */
static bool numbers_are_said(const char *text, const extract_line *lines, size_t n)
{
    for (const char *p = text; *p; p++) {
        size_t len = strspn(p, "0123456789");
        char digits[24];
        bool there = false;

        if (len == 0) continue;
        if (len >= sizeof digits) return false;
        snprintf(digits, sizeof digits, "%.*s", (int)len, p);
        for (size_t i = 0; i < n && !there; i++)
            there = (lines[i].is_user && strstr(lines[i].text, digits)) || is_of_a_date(digits, len, lines[i].when);
        if (!there) return false;
        p += len - 1;
    }
    return true;
}

static bool same_text(const char *a, const char *b)
{
    char x[WORD], y[WORD];

    for (;;) {
        bool more = next_word(&a, x);

        if (next_word(&b, y) != more) return false;
        if (!more) return true;
        if (strcmp(x, y) != 0) return false;
    }
}

/* N_FAULTS = nothing. */
static extract_fault fault_of(const char *text, const extract_line *lines, size_t n, const extract_found *so_far)
{
    unsigned said, all;

    if (strlen(text) < SHORTEST) return FAULT_SHORT;
    if (strlen(text) > LONGEST) return FAULT_LONG;
    if (strpbrk(text, "{}<>|`\n\r\t") || strstr(text, "\"text\"")) return FAULT_UNREADABLE;
    if (strstr(extract_told, text)) return FAULT_PROMPT;
    count_said(text, lines, n, &said, &all);
    if (all == 0) return FAULT_NO_WORDS;
    if (!stands_alone(text)) return FAULT_NOT_ALONE;
    if (2 * said < all || said == 0) return FAULT_NOT_SAID;
    if (!numbers_are_said(text, lines, n)) return FAULT_NUMBER;
    for (size_t i = 0; i < so_far->n; i++)
        if (same_text(so_far->facts[i].text, text)) return FAULT_TWICE;
    return N_FAULTS;
}

/* The line it comes from: the one named, if a user said it; else the user's line that has most of its words. */
static size_t line_of(json_t *named, const char *text, const extract_line *lines, size_t n)
{
    json_int_t which = json_is_integer(named) ? json_integer_value(named) : 0;
    size_t best = 0;
    unsigned most = 0;

    if (which >= 1 && (size_t)which <= n && lines[which - 1].is_user) return (size_t)which - 1;
    for (size_t i = 0; i < n; i++) {
        unsigned said, all;

        count_said(text, &lines[i], 1, &said, &all);
        if (lines[i].is_user && (said > most || !lines[best].is_user)) best = i, most = said;
    }
    return best;
}

/* ---- Reading --------------------------------------------------------------------------------------------------------------- */

/* The JSON object in a reply: some put it between ``` marks, or words before it. */
static json_t *object_in(const char *reply)
{
    const char *from = strchr(reply, '{'), *to = strrchr(reply, '}');

    if (!from || !to || to < from || strlen(reply) > REPLY_MAX) return NULL;
    return json_loadb(from, (size_t)(to - from) + 1, JSON_REJECT_DUPLICATES, NULL);
}

static void take(json_t *f, const extract_line *lines, size_t n, extract_found *out)
{
    json_t *v = json_is_object(f) ? json_object_get(f, "text") : f; /* a bare string is what was meant, too */
    const char *text = json_string_value(v);
    extract_fault fault;

    if (!text || !is_utf8_valid(text, json_string_length(v), NULL)) {
        out->refused[FAULT_UNREADABLE]++;
        return;
    }
    while (*text == ' ') text++;
    fault = fault_of(text, lines, n, out);
    if (fault == N_FAULTS && out->n == EXTRACT_FACTS) fault = FAULT_TOO_MANY;
    if (fault != N_FAULTS) {
        out->refused[fault]++;
        return;
    }
    snprintf(out->facts[out->n].text, sizeof out->facts[0].text, "%s", text);
    out->facts[out->n].line = line_of(json_is_object(f) ? json_object_get(f, "line") : NULL, text, lines, n);
    out->n++;
}

void extract_read(const char *reply, const extract_line *lines, size_t n, extract_found *out)
{
    json_t *o = object_in(reply), *list = json_object_get(o, "facts"), *f;
    size_t i;

    memset(out, 0, sizeof *out);
    if (!json_is_array(list)) {
        out->refused[FAULT_UNREADABLE]++;
    } else {
        json_array_foreach(list, i, f) take(f, lines, n, out);
    }
    json_decref(o);
}

extract_choice extract_read_choice(const char *reply, size_t n, size_t *which)
{
    static const char *const names[] = { "ADD", "UPDATE", "DELETE", "NOOP" };
    json_t *o = object_in(reply), *number = json_object_get(o, "number");
    const char *event = json_string_value(json_object_get(o, "event"));
    json_int_t at = json_is_integer(number) ? json_integer_value(number) : 0;
    extract_choice c = CHOICE_UNREADABLE;

    for (int i = 0; event && i < 4; i++)
        if (strcmp(event, names[i]) == 0) c = (extract_choice)i;
    if (c == CHOICE_UPDATE || c == CHOICE_DELETE || c == CHOICE_NOOP) {
        if (at < 1 || (size_t)at > n) c = CHOICE_UNREADABLE;
        else *which = (size_t)at - 1;
    }
    json_decref(o);
    return c;
}
