/* grade.c - see grade.h. LoCoMo's score: commas and punctuation go, articles and "and" go, words
 * are stemmed (Porter), and precision and recall are of the words as a bag. */
#include "eval/grade.h"

#include <libstemmer.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

enum { NUMBERS = 13 };

struct grader {
    struct sb_stemmer *stemmer;
};

/* Words of a text, one behind another. */
typedef struct words {
    is_buf text; /* each ends with NUL */
    size_t *at;  /* [n] where they begin */
    size_t n, room;
} words;

/* How a text becomes words. */
typedef enum how {
    FOR_F1, /* as LoCoMo: punctuation vanishes, articles are dropped */
    /* punctuation parts words, an apostrophe vanishes, numbers are words */
    FOR_FINDING
} how;

static void words_free(words *w)
{
    is_buf_free(&w->text);
    is_free(w->at);
    *w = (words){ 0 };
}

static const char *word(const words *w, size_t i) { return (const char *)w->text.data + w->at[i]; }

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory while grading an answer");
}

static bool is_article(const char *s)
{
    return !strcmp(s, "a") || !strcmp(s, "an") || !strcmp(s, "the") || !strcmp(s, "and");
}

/* "3" -> "three". */
static const char *in_letters(const char *s)
{
    static const char *const numbers[NUMBERS] = { "zero", "one",    "two",   "three", "four",
                                                  "five", "six",    "seven", "eight", "nine",
                                                  "ten",  "eleven", "twelve" };
    static const char *const digits[NUMBERS] = { "0", "1", "2", "3",  "4",  "5", "6",
                                                 "7", "8", "9", "10", "11", "12" };

    for (size_t i = 0; i < NUMBERS; i++)
        if (strcmp(s, digits[i]) == 0) return numbers[i];
    return s;
}

static is_status add_word(grader *g, words *w, const char *s, how h)
{
    const sb_symbol *stem;
    size_t *more;

    if (s[0] == 0 || (h == FOR_F1 && is_article(s))) return INFERSCALE_OK;
    if (h == FOR_FINDING) s = in_letters(s);
    stem = sb_stemmer_stem(g->stemmer, (const sb_symbol *)s, (int)strlen(s));
    if (stem == NULL) return no_memory();
    if (w->n == w->room) {
        more = is_realloc(w->at, (w->room * 2 + 16) * sizeof *more);
        if (more == NULL) return no_memory();
        w->at = more;
        w->room = w->room * 2 + 16;
    }
    w->at[w->n++] = w->text.len;
    is_buf_add(&w->text, stem, (size_t)sb_stemmer_length(g->stemmer));
    is_buf_u8(&w->text, 0);
    return is_buf_ok(&w->text) ? INFERSCALE_OK : no_memory();
}

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* ASCII only, as string.punctuation. */
static bool is_punctuation(char c)
{
    return c > ' ' && c < 127 && !(c >= '0' && c <= '9') && !((c | 32) >= 'a' && (c | 32) <= 'z');
}

static is_status split(grader *g, const char *text, size_t n, how h, words *out)
{
    is_buf one = IS_BUF_INIT;
    is_status st = INFERSCALE_OK;

    *out = (words){ 0 };
    for (size_t i = 0; i <= n && st == INFERSCALE_OK; i++) {
        const char c = i < n ? text[i] : ' ';
        const bool gone = is_punctuation(c) && (h == FOR_F1 || c == '\'');

        if (gone) continue;
        if (!is_space(c) && !is_punctuation(c)) {
            is_buf_u8(&one, (uint8_t)(c >= 'A' && c <= 'Z' ? c | 32 : c));
            continue;
        }
        is_buf_u8(&one, 0);
        st = is_buf_ok(&one) ? add_word(g, out, (const char *)one.data, h) : no_memory();
        is_buf_clear(&one);
    }
    is_buf_free(&one);
    if (st != INFERSCALE_OK) words_free(out);
    return st;
}

/* ---- F1 -------------------------------------------------------------------------------------- */

static is_status f1_of(grader *g, const char *a, size_t n_a, const char *b, size_t n_b, double *out)
{
    words said, gold;
    bool *used;
    size_t same = 0;

    *out = 0;
    IS_TRY(split(g, a, n_a, FOR_F1, &said));
    if (split(g, b, n_b, FOR_F1, &gold) != INFERSCALE_OK) {
        words_free(&said);
        return no_memory();
    }
    used = is_calloc(gold.n + 1, sizeof *used);
    for (size_t i = 0; used && i < said.n; i++)
        for (size_t k = 0; k < gold.n; k++) {
            if (used[k] || strcmp(word(&said, i), word(&gold, k)) != 0) continue;
            used[k] = true;
            same++;
            break;
        }
    if (same > 0) *out = 2.0 * (double)same / (double)(said.n + gold.n);
    words_free(&said);
    words_free(&gold);
    is_free(used);
    return used ? INFERSCALE_OK : no_memory();
}

/* A list: each of its parts against the best part of the answer, and the mean of these. */
static is_status f1_of_list(grader *g, const char *said, const char *gold, double *out)
{
    double sum = 0;
    size_t n = 0;

    for (const char *b = gold;; b += strcspn(b, ",") + 1) {
        double best = 0;

        for (const char *a = said;; a += strcspn(a, ",") + 1) {
            double f1;

            IS_TRY(f1_of(g, a, strcspn(a, ","), b, strcspn(b, ","), &f1));
            if (f1 > best) best = f1;
            if (a[strcspn(a, ",")] == 0) break;
        }
        sum += best;
        n++;
        if (b[strcspn(b, ",")] == 0) break;
    }
    *out = sum / (double)n;
    return INFERSCALE_OK;
}

/* ---- Finding --------------------------------------------------------------------------------- */

/* Where the words of `what` stand together first; in.n = nowhere. */
static is_status find(grader *g, const words *in, const char *what, size_t *at)
{
    words w;

    IS_TRY(split(g, what, strlen(what), FOR_FINDING, &w));
    for (*at = 0; w.n > 0 && *at + w.n <= in->n; ++*at) {
        size_t k = 0;

        while (k < w.n && strcmp(word(in, *at + k), word(&w, k)) == 0) k++;
        if (k == w.n) break;
    }
    if (w.n == 0 || *at + w.n > in->n) *at = in->n;
    words_free(&w);
    return INFERSCALE_OK;
}

static is_status is_right(grader *g, const quiz_question *q, const words *said, bool *out)
{
    size_t best = said->n, at;

    for (size_t i = 0; i < QUIZ_ANSWERS && q->answers[i]; i++) {
        IS_TRY(find(g, said, q->answers[i], &at));
        if (at < best) best = at;
    }
    *out = best < said->n;
    for (size_t i = 0; i < QUIZ_CHOICES && q->choices[i] && *out; i++) {
        if (i == q->right) continue;
        IS_TRY(find(g, said, q->choices[i], &at));
        *out = at >= best;
    }
    return INFERSCALE_OK;
}

is_status grade_answer(grader *g, const quiz_question *q, const char *answer, grade *out)
{
    words said;
    is_status st;

    *out = (grade){ 0 };
    for (size_t i = 0; i < QUIZ_ANSWERS && q->answers[i]; i++) {
        const char *gold = q->answers[i];
        double f1;

        if (q->is_list) IS_TRY(f1_of_list(g, answer, gold, &f1));
        else IS_TRY(f1_of(g, answer, strlen(answer), gold, strlen(gold), &f1));
        if (f1 > out->f1) out->f1 = f1;
    }
    IS_TRY(split(g, answer, strlen(answer), FOR_FINDING, &said));
    st = is_right(g, q, &said, &out->right);
    words_free(&said);
    return st;
}

is_status grader_new(grader **out)
{
    grader *g = is_calloc(1, sizeof *g);

    *out = NULL;
    if (g) g->stemmer = sb_stemmer_new("porter", "UTF_8");
    if (g == NULL || g->stemmer == NULL) {
        grader_free(g);
        return no_memory();
    }
    *out = g;
    return INFERSCALE_OK;
}

void grader_free(grader *g)
{
    if (g == NULL) return;
    if (g->stemmer) sb_stemmer_delete(g->stemmer);
    is_free(g);
}
