/* terms.c - the tokeniser.
 *
 * A word is a run of letters and digits of any script. Folding makes "José", "JOSE" and a decomposed "José" one word: people
 * type questions without the accents they wrote. An apostrophe inside a word is dropped with a possessive s ("Anna's" = "Anna",
 * "don't" = "dont"). Chinese and Japanese have no spaces: each character is a term, and so is each adjacent pair. */
#include "recall/terms.h"

#include <libstemmer.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"

struct is_terms {
    struct sb_stemmer *stemmer;
    char word[IS_TERM_MAX];
    size_t n;
    char pair[8]; /* the last ideograph, for pairs; n_pair = 0 if the last character was none */
    size_t n_pair;
};

/* Folded words (no apostrophes) that say nothing about what is asked. Sorted; "may" is not here: it is a month. */
static const char *const stop_words[] = {
    "a", "about", "above", "after", "again", "against", "all", "also", "am", "an", "and", "any", "are", "arent", "as", "at",
    "be", "because", "been", "before", "being", "below", "between", "both", "but", "by", "can", "cannot", "cant", "could",
    "couldnt", "did", "didnt", "do", "does", "doesnt", "doing", "dont", "down", "during", "each", "else", "ever", "few",
    "for", "from", "further", "had", "hadnt", "has", "hasnt", "have", "havent", "having", "he", "hed", "her", "here", "heres",
    "hers", "herself", "hes", "him", "himself", "his", "how", "hows", "i", "id", "if", "im", "in", "into", "is", "isnt", "it",
    "itd", "itll", "its", "itself", "ive", "just", "let", "lets", "me", "more", "most", "mustnt", "my", "myself", "no", "nor",
    "not", "of", "off", "on", "once", "only", "or", "other", "ought", "our", "ours", "ourselves", "out", "over", "own",
    "same", "shall", "she", "shed", "shes", "should", "shouldnt", "so", "some", "such", "than", "that", "thats", "the",
    "their", "theirs", "them", "themselves", "then", "there", "theres", "these", "they", "theyd", "theyll", "theyre",
    "theyve", "this", "those", "through", "to", "too", "under", "until", "up", "us", "very", "was", "wasnt", "we", "wed",
    "were", "werent", "weve", "what", "whats", "when", "whens", "where", "wheres", "which", "while", "who", "whom", "whos",
    "whose", "why", "whys", "will", "with", "wont", "would", "wouldnt", "you", "youd", "youll", "your", "youre", "yours",
    "yourself", "yourselves", "youve",
};

bool is_stop_word(const char *word, size_t n)
{
    size_t lo = 0, hi = sizeof stop_words / sizeof *stop_words;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strncmp(word, stop_words[mid], n);
        if (c == 0 && stop_words[mid][n]) c = -1; /* a proper prefix sorts before */
        if (c == 0) return true;
        if (c < 0) hi = mid;
        else lo = mid + 1;
    }
    return false;
}

/* Latin-1 Supplement and Latin Extended-A: runs of code points that share a base letter; '\0' = keep as it is. */
static const struct { uint16_t from; char letter; } latin[] = {
    {0xc0, 'a'}, {0xc6, 0}, {0xc7, 'c'}, {0xc8, 'e'}, {0xcc, 'i'}, {0xd0, 0}, {0xd1, 'n'}, {0xd2, 'o'}, {0xd7, 0},
    {0xd8, 'o'}, {0xd9, 'u'}, {0xdd, 'y'}, {0xde, 0}, {0xe0, 'a'}, {0xe6, 0}, {0xe7, 'c'}, {0xe8, 'e'}, {0xec, 'i'},
    {0xf0, 0}, {0xf1, 'n'}, {0xf2, 'o'}, {0xf7, 0}, {0xf8, 'o'}, {0xf9, 'u'}, {0xfd, 'y'}, {0xfe, 0}, {0xff, 'y'},
    {0x100, 'a'}, {0x106, 'c'}, {0x10e, 'd'}, {0x112, 'e'}, {0x11c, 'g'}, {0x124, 'h'}, {0x128, 'i'}, {0x132, 0},
    {0x134, 'j'}, {0x136, 'k'}, {0x139, 'l'}, {0x143, 'n'}, {0x14a, 0}, {0x14c, 'o'}, {0x152, 0}, {0x154, 'r'}, {0x15a, 's'},
    {0x162, 't'}, {0x168, 'u'}, {0x174, 'w'}, {0x176, 'y'}, {0x179, 'z'}, {0x17f, 's'}, {0x180, 0},
};

/* Ranges whose capitals map to small letters: step 1 = by adding delta, step 2 = by setting the low bit (even capitals), step 3
 * = odd capitals followed by their small letter. */
static const struct { uint32_t from, to; int step, delta; } cases[] = {
    {0xc6, 0xde, 1, 32}, {0x132, 0x133, 2, 0}, {0x14a, 0x14b, 2, 0}, {0x152, 0x153, 2, 0}, {0x386, 0x386, 1, 38},
    {0x388, 0x38a, 1, 37}, {0x38c, 0x38c, 1, 64}, {0x38e, 0x38f, 1, 63}, {0x391, 0x3ab, 1, 32}, {0x3c2, 0x3c2, 1, 1},
    {0x400, 0x40f, 1, 80}, {0x410, 0x42f, 1, 32}, {0x460, 0x481, 2, 0}, {0x48a, 0x4bf, 2, 0}, {0x4c1, 0x4ce, 3, 0},
    {0x4d0, 0x52f, 2, 0}, {0x531, 0x556, 1, 48}, {0x1e00, 0x1e95, 2, 0}, {0x1ea0, 0x1eff, 2, 0}, {0xff21, 0xff3a, 1, 32},
};

static uint32_t fold(uint32_t c)
{
    if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
    if (c >= 0xc0 && c < 0x180) {
        size_t i = 0;
        while (latin[i + 1].from <= c) i++;
        if (latin[i].letter) return (uint32_t)latin[i].letter;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (c < cases[i].from || c > cases[i].to) continue;
        if (cases[i].step == 1) return (uint32_t)((int64_t)c + cases[i].delta);
        if (cases[i].step == 2) return c | 1;
        return c & 1 ? c + 1 : c;
    }
    return c;
}

enum { CLASS_SPACE, CLASS_LETTER, CLASS_MARK, CLASS_QUOTE, CLASS_IDEOGRAPH };

typedef struct range { uint32_t from, to; } range;

static bool in_table(uint32_t c, const range *r, size_t n)
{
    for (size_t i = 0; i < n && r[i].from <= c; i++)
        if (c <= r[i].to) return true;
    return false;
}

/* Invisible inside words: soft hyphen, combining marks, joiners, variation selectors. */
static const range marks[] = {{0xad, 0xad}, {0x300, 0x36f}, {0x200c, 0x200d}, {0xfe00, 0xfe0f}};
/* Written without spaces: kana, ideographs. */
static const range ideographs[] = {{0x3040, 0x30ff}, {0x3400, 0x4dbf}, {0x4e00, 0x9fff}, {0xf900, 0xfaff}, {0x20000, 0x3ffff}};

/* Not a letter: ranges above ASCII, sorted. Everything else above 0x80 counts as one. */
static const range separators[] = {
    {0x80, 0xa9}, {0xab, 0xb4}, {0xb6, 0xb9}, {0xbb, 0xbf}, {0xd7, 0xd7}, {0xf7, 0xf7}, {0x37e, 0x37e}, {0x387, 0x387},
    {0x55a, 0x55f}, {0x589, 0x58a}, {0x5be, 0x5be}, {0x60c, 0x60d}, {0x61b, 0x61f}, {0x66a, 0x66d}, {0x964, 0x965},
    {0x1680, 0x1680}, {0x2000, 0x2bff}, {0x2e00, 0x2e7f}, {0x3000, 0x3004}, {0x3008, 0x3030}, {0x30fb, 0x30fb},
    {0xd800, 0xf8ff}, {0xfe10, 0xfe6f}, {0xfeff, 0xff0f}, {0xff1a, 0xff20}, {0xff3b, 0xff40}, {0xff5b, 0xff65},
    {0xffe0, 0xffff}, {0x1f000, 0x1faff}, {0xe0000, 0x10ffff},
};

static int class_of(uint32_t c)
{
    if (c < 0x80) {
        if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return CLASS_LETTER;
        return c == '\'' ? CLASS_QUOTE : CLASS_SPACE;
    }
    if (c == 0x2019 || c == 0x2bc) return CLASS_QUOTE;
    if (in_table(c, marks, sizeof marks / sizeof *marks)) return CLASS_MARK;
    if (in_table(c, separators, sizeof separators / sizeof *separators)) return CLASS_SPACE;
    return in_table(c, ideographs, sizeof ideographs / sizeof *ideographs) ? CLASS_IDEOGRAPH : CLASS_LETTER;
}

/* The character at p, and its length; wrong bytes read as U+FFFD (a separator) of length 1. */
static uint32_t decode(const unsigned char *p, size_t left, size_t *n)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t len = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    uint32_t c = len == 1 ? p[0] : len == 2 ? p[0] & 0x1f : len == 3 ? p[0] & 0x0f : p[0] & 0x07;

    *n = 1;
    if (len == 0 || len > left) return 0xfffd;
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0xfffd;
        c = c << 6 | (p[i] & 0x3f);
    }
    if (c < least[len] || c > 0x10ffff) return 0xfffd;
    *n = len;
    return c;
}

static size_t encode(uint32_t c, char out[4])
{
    if (c < 0x80) return out[0] = (char)c, 1;
    if (c < 0x800) return out[0] = (char)(0xc0 | c >> 6), out[1] = (char)(0x80 | (c & 0x3f)), 2;
    if (c < 0x10000)
        return out[0] = (char)(0xe0 | c >> 12), out[1] = (char)(0x80 | (c >> 6 & 0x3f)), out[2] = (char)(0x80 | (c & 0x3f)), 3;
    out[0] = (char)(0xf0 | c >> 18), out[1] = (char)(0x80 | (c >> 12 & 0x3f)), out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    return out[3] = (char)(0x80 | (c & 0x3f)), 4;
}

static is_status flush(is_terms *t, is_term_fn each, void *ctx)
{
    size_t n = t->n;
    t->n = 0;
    if (n == 0 || is_stop_word(t->word, n)) return INFERSCALE_OK;
    const sb_symbol *stem = sb_stemmer_stem(t->stemmer, (const sb_symbol *)t->word, (int)n);
    if (!stem) return is_fail(INFERSCALE_E_NOMEM, "out of memory while stemming; free some and try again");
    int len = sb_stemmer_length(t->stemmer);
    return len > 0 ? each(ctx, (const char *)stem, (size_t)len) : INFERSCALE_OK;
}

static is_status ideograph(is_terms *t, const char *s, size_t n, is_term_fn each, void *ctx)
{
    if (t->n_pair) {
        memcpy(t->pair + t->n_pair, s, n);
        IS_TRY(each(ctx, t->pair, t->n_pair + n));
    }
    memcpy(t->pair, s, n);
    t->n_pair = n;
    return each(ctx, s, n);
}

/* 1 if a lone s stands at p: the rest of "Anna's" after the apostrophe. */
static size_t possessive(const unsigned char *p, size_t left)
{
    size_t n;
    if (left == 0 || (p[0] | 0x20) != 's') return 0;
    return left == 1 || class_of(decode(p + 1, left - 1, &n)) != CLASS_LETTER;
}

is_status is_terms_each(is_terms *t, const char *text, size_t len, is_term_fn each, void *ctx)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t step;

    t->n = t->n_pair = 0;
    for (size_t i = 0; i < len; i += step) {
        uint32_t c = decode(p + i, len - i, &step);
        int class = class_of(c);
        char s[4];
        if (class == CLASS_MARK) continue;
        if (class == CLASS_QUOTE && t->n) { /* inside a word: dropped, with a possessive s after it */
            step += possessive(p + i + step, len - i - step);
            continue;
        }
        size_t n = encode(fold(c), s);
        if (class != CLASS_LETTER) IS_TRY(flush(t, each, ctx));
        if (class == CLASS_IDEOGRAPH) {
            IS_TRY(ideograph(t, s, n, each, ctx));
            continue;
        }
        t->n_pair = 0;
        if (class == CLASS_LETTER && t->n + n <= IS_TERM_MAX) {
            memcpy(t->word + t->n, s, n);
            t->n += n;
        }
    }
    return flush(t, each, ctx);
}

is_status is_terms_new(is_terms **out)
{
    is_terms *t = is_calloc(1, sizeof *t);
    *out = NULL;
    if (t) t->stemmer = sb_stemmer_new("english", "UTF_8");
    if (!t || !t->stemmer) {
        is_terms_free(t);
        return is_fail(INFERSCALE_E_NOMEM, "out of memory for the word stemmer; free some and try again");
    }
    *out = t;
    return INFERSCALE_OK;
}

void is_terms_free(is_terms *t)
{
    if (!t) return;
    if (t->stemmer) sb_stemmer_delete(t->stemmer);
    is_free(t);
}
