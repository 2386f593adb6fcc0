/* profile.c - the pieces of a prompt with memory, tokenised once a model and apart from each other.
 *
 * Memory stands right before the newest user turn, so that a conversation's earlier turns stay in the cache whatever memory does:
 * in the first turn at the end of the system text, later at the beginning of the user's turn (many formats know one system text
 * only). The words are plain, so that they suit any model. */
#include "plan/profile.h"

#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"

static const char default_system[] = "You are a helpful assistant.";
static const char memory_open[] = "\n\nWhat you remember:\n";
static const char next_memory_open[] = "What you remember:\n";
static const char next_memory_close[] = "\n";

const char *is_profile_system_default(void)
{
    return default_system;
}

void is_tokens_free(is_tokens *t)
{
    if (!t) return;
    is_free(t->ids);
    t->ids = NULL;
    t->n = 0;
}

/* One stretch of prompt text; template pieces may hold control tokens, people's text may not. */
typedef struct piece {
    const char *text;
    bool is_template;
    const is_realm *whose; /* NULL = the product's own words, or nobody's */
} piece;

/* Tokenises the pieces one by one and joins the ids; the first may carry the BOS. */
static is_status join_fitting(is_engine *e, const piece *pieces, size_t n, bool add_bos, const is_fit *fit, is_tokens *out)
{
    is_buf ids = IS_BUF_INIT;
    is_status st = INFERSCALE_OK;

    *out = (is_tokens){ 0 };
    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) {
        int32_t *part = NULL;
        uint32_t n_part = 0;

        if (!pieces[i].text[0] && !(i == 0 && add_bos)) continue;
        st = is_engine_tokenize_fit(e, pieces[i].whose, pieces[i].text, strlen(pieces[i].text), pieces[i].is_template, i == 0 && add_bos,
                                    pieces[i].is_template ? NULL : fit, &part, &n_part);
        if (st == INFERSCALE_OK) is_buf_add(&ids, part, n_part * sizeof *part);
        is_free(part);
    }
    if (st == INFERSCALE_OK && !is_buf_ok(&ids)) st = is_fail(INFERSCALE_E_NOMEM, "out of memory while tokenising the prompt");
    if (st != INFERSCALE_OK) {
        is_buf_free(&ids);
        return st;
    }
    out->n = (uint32_t)(ids.len / sizeof(int32_t));
    out->ids = (int32_t *)(void *)ids.data;
    return INFERSCALE_OK;
}

static is_status join_pieces(is_engine *e, const piece *pieces, size_t n, bool add_bos, is_tokens *out)
{
    return join_fitting(e, pieces, n, add_bos, NULL, out);
}

is_status is_profile_system(is_engine *e, const is_realm *whose, const char *system, const is_fit *fit, is_tokens *header,
                            is_tokens *header_plain)
{
    const is_chat_format *c = is_engine_chat(e);
    const piece with[] = { { c->system_open, true, NULL }, { system, false, whose }, { memory_open, false, NULL } };
    const piece plain[] = { { c->system_open, true, NULL }, { system, false, whose }, { c->system_close, true, NULL }, { c->user_open, true, NULL } };

    *header_plain = (is_tokens){ 0 };
    IS_TRY(join_fitting(e, with, 3, true, fit, header));
    return join_fitting(e, plain, 4, true, fit, header_plain);
}

static is_status build_pieces(is_engine *e, const char *system, is_profile *p)
{
    const is_chat_format *c = is_engine_chat(e);
    const piece footer[] = { { c->system_close, true, NULL }, { c->user_open, true, NULL } };
    const piece next[] = { { c->assistant_close, true, NULL }, { c->user_open, true, NULL }, { next_memory_open, false, NULL } };
    const piece next_footer[] = { { next_memory_close, false, NULL } };
    const piece tail[] = { { c->user_close, true, NULL }, { c->assistant_open, true, NULL } };

    IS_TRY(is_profile_system(e, NULL, system, NULL, &p->header, &p->header_plain));
    IS_TRY(join_pieces(e, footer, 2, false, &p->footer));
    IS_TRY(join_pieces(e, next, 3, false, &p->next_header));
    IS_TRY(join_pieces(e, next_footer, 1, false, &p->next_footer));
    IS_TRY(join_pieces(e, next, 2, false, &p->next_plain));
    return join_pieces(e, tail, 2, false, &p->tail);
}

static is_status fingerprint_profile(is_engine *e, is_profile *p)
{
    for (int codec = 0; codec < IS_CODECS; codec++) {
        is_hash *h = NULL;

        IS_TRY(is_hash_new(NULL, &h));
        is_hash_field(h, "profile-1", 9);
        is_hash_field(h, is_engine_describe(e)->fingerprint, IS_HASH_BYTES);
        is_hash_field(h, p->header.ids, p->header.n * sizeof(int32_t));
        is_hash_u64(h, (uint64_t)codec);
        is_hash_end(h, p->in_codec[codec]);
    }
    memcpy(p->fingerprint, p->in_codec[p->codec], IS_HASH_BYTES);
    return INFERSCALE_OK;
}

is_status is_profile_new(is_engine *e, const char *system, is_codec codec, is_profile **out)
{
    is_profile *p = is_calloc(1, sizeof *p);
    is_status st;

    *out = NULL;
    if (!p) return is_fail(INFERSCALE_E_NOMEM, "out of memory while preparing the prompt layout");
    p->codec = codec;
    st = build_pieces(e, system ? system : default_system, p);
    if (st == INFERSCALE_OK) st = fingerprint_profile(e, p);
    if (st != INFERSCALE_OK) {
        is_profile_free(p);
        return st;
    }
    *out = p;
    return INFERSCALE_OK;
}

static is_status copy_tokens(const is_tokens *from, is_tokens *to)
{
    to->ids = is_malloc((from->n + 1) * sizeof *to->ids);
    if (!to->ids) return is_fail(INFERSCALE_E_NOMEM, "out of memory while preparing the prompt layout");
    to->n = from->n;
    if (from->n) memcpy(to->ids, from->ids, from->n * sizeof *to->ids);
    return INFERSCALE_OK;
}

is_status is_profile_in(const is_profile *p, is_codec codec, is_profile **out)
{
    is_profile *c = is_calloc(1, sizeof *c);
    is_status st = c ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory while preparing the prompt layout");

    if (st == INFERSCALE_OK) st = copy_tokens(&p->header, &c->header);
    if (st == INFERSCALE_OK) st = copy_tokens(&p->header_plain, &c->header_plain);
    if (st == INFERSCALE_OK) st = copy_tokens(&p->footer, &c->footer);
    if (st == INFERSCALE_OK) st = copy_tokens(&p->tail, &c->tail);
    if (st == INFERSCALE_OK) st = copy_tokens(&p->next_header, &c->next_header);
    if (st == INFERSCALE_OK) st = copy_tokens(&p->next_footer, &c->next_footer);
    if (st == INFERSCALE_OK) st = copy_tokens(&p->next_plain, &c->next_plain);
    if (st != INFERSCALE_OK) {
        is_profile_free(c);
        return st;
    }
    c->codec = codec;
    memcpy(c->in_codec, p->in_codec, sizeof c->in_codec);
    memcpy(c->fingerprint, p->in_codec[codec], IS_HASH_BYTES);
    *out = c;
    return INFERSCALE_OK;
}

void is_profile_free(is_profile *p)
{
    if (!p) return;
    is_tokens_free(&p->header);
    is_tokens_free(&p->header_plain);
    is_tokens_free(&p->footer);
    is_tokens_free(&p->tail);
    is_tokens_free(&p->next_header);
    is_tokens_free(&p->next_footer);
    is_tokens_free(&p->next_plain);
    is_free(p);
}

/* Adds text with every run of white space and control bytes as one blank: a line break in a fact must not open another fact. */
static void add_one_line(is_buf *b, const char *text)
{
    bool gap = false;

    for (const unsigned char *s = (const unsigned char *)text; *s; s++) {
        if (*s <= ' ' || *s == 0x7f) {
            gap = true;
            continue;
        }
        if (gap && b->len) is_buf_u8(b, ' ');
        gap = false;
        is_buf_u8(b, *s);
    }
}

/* "- 8 May 2023: [Speaker: ]text\n", without the date where nobody gave one. */
static is_status item_line(is_engine *e, const is_realm *whose, const inferscale_item *item, const char *speaker, is_tokens *out)
{
    is_buf line = IS_BUF_INIT;
    char date[32];
    is_status st;

    is_date_text(item->dated ? item->event_time : 0, date);
    is_buf_str(&line, "- ");
    if (date[0]) is_buf_fmt(&line, "%s: ", date);
    if (speaker && speaker[0]) {
        is_buf own = IS_BUF_INIT;

        add_one_line(&own, speaker);
        if (own.len) is_buf_fmt(&line, "%s: ", (const char *)own.data);
        is_buf_free(&own);
    }
    is_buf text = IS_BUF_INIT;
    add_one_line(&text, item->text);
    if (text.len) is_buf_add(&line, text.data, text.len);
    is_buf_str(&line, "\n");
    if (!is_buf_ok(&line) || !is_buf_ok(&text)) {
        st = is_fail(INFERSCALE_E_NOMEM, "out of memory while laying out fact %lld", (long long)item->id);
    } else {
        const piece p = { (const char *)line.data, false, whose };
        st = join_pieces(e, &p, 1, false, out);
    }
    is_buf_free(&text);
    is_buf_free(&line);
    return st;
}

is_status is_profile_fact(is_engine *e, const is_realm *whose, const inferscale_item *fact, is_tokens *out)
{
    return item_line(e, whose, fact, NULL, out);
}

is_status is_profile_turn(is_engine *e, const is_realm *whose, const inferscale_item *turn, is_tokens *out)
{
    return item_line(e, whose, turn, turn->speaker, out);
}

is_status is_profile_question(is_engine *e, const is_realm *whose, const char *text, is_tokens *out)
{
    return is_profile_words(e, whose, text, NULL, out);
}

is_status is_profile_words(is_engine *e, const is_realm *whose, const char *text, const is_fit *fit, is_tokens *out)
{
    const piece p = { text, false, whose };

    return join_fitting(e, &p, 1, false, fit, out);
}

is_status is_profile_raw(is_engine *e, const is_realm *whose, const char *text, const is_fit *fit, is_tokens *out)
{
    const piece p = { text, false, whose };

    return join_fitting(e, &p, 1, true, fit, out);
}
