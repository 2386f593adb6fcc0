/* tokens.c - text to ids by a server's tokenizer, each text of an owner once; and ids to bytes by the description. Owners share nothing
 * (who asks could tell by the time it takes whether another has said the same), and what is kept of one goes when anything of his goes.
 *
 * The server's tokenizer makes control tokens of their literals wherever they stand. Where they must stay text (parse_special false:
 * everything that a client or a fact says), the text is cut inside each literal, behind its first character, and the pieces are
 * tokenised apart; whatever still comes back as a control token is refused. */
#include "engine/vllm/internal.h"

#include <string.h>

enum {
    BUCKETS = 8192,
    BUDGET = 32 << 20,              /* bytes of texts and ids kept */
    MAX_TEXT = 16 << 20,
    MAX_CUTS = 4096,
};

typedef struct entry {
    struct entry *chain, *newer, *older;
    uint8_t tag[IS_HASH_BYTES];     /* whose; 0 = a template's or nobody's */
    char *text;
    size_t len;
    int32_t *ids;
    uint32_t n;
    uint64_t hash;                  /* of tag and text */
} entry;

struct vllm_tokens {
    pthread_mutex_t lock;
    entry *buckets[BUCKETS], *newest, *oldest;
    size_t bytes;
};

/* ---- What is kept -------------------------------------------------------------------------------------------------------- */

is_status vllm_tokens_new(vllm_tokens **out)
{
    *out = is_calloc(1, sizeof **out);
    if (!*out) return vllm_no_memory();
    pthread_mutex_init(&(*out)->lock, NULL);
    return INFERSCALE_OK;
}

static size_t bytes_of(const entry *x)
{
    return sizeof *x + x->len + x->n * sizeof *x->ids;
}

static void free_entry(entry *x)
{
    if (!x) return;
    if (x->text) is_wipe(x->text, x->len);
    if (x->ids) is_wipe(x->ids, x->n * sizeof *x->ids);
    is_free(x->text);
    is_free(x->ids);
    is_free(x);
}

static void unlink_entry(vllm_tokens *t, entry *x)
{
    if (x->newer) x->newer->older = x->older;
    else t->newest = x->older;
    if (x->older) x->older->newer = x->newer;
    else t->oldest = x->newer;
    x->newer = x->older = NULL;
}

static void link_newest(vllm_tokens *t, entry *x)
{
    x->older = t->newest;
    if (t->newest) t->newest->newer = x;
    t->newest = x;
    if (!t->oldest) t->oldest = x;
}

static void drop(vllm_tokens *t, entry *x)
{
    entry **at = &t->buckets[x->hash % BUCKETS];

    while (*at != x) at = &(*at)->chain;
    *at = x->chain;
    unlink_entry(t, x);
    t->bytes -= bytes_of(x);
    free_entry(x);
}

void vllm_tokens_drop(vllm_tokens *t)
{
    if (!t) return;
    while (t->oldest) drop(t, t->oldest);
    pthread_mutex_destroy(&t->lock);
    is_free(t);
}

void vllm_tokens_forget(vllm_tokens *t, const uint8_t *tag)
{
    pthread_mutex_lock(&t->lock);
    for (entry *x = t->newest, *next; x; x = next) {
        next = x->older;
        if (memcmp(x->tag, tag, IS_HASH_BYTES) == 0) drop(t, x);
    }
    pthread_mutex_unlock(&t->lock);
}

static const uint8_t *tag_of(const is_realm *whose)
{
    static const uint8_t nobody[IS_HASH_BYTES];

    return whose ? whose->tag : nobody;
}

static uint64_t hash_of(const is_realm *whose, const char *text, size_t len)
{
    uint64_t own;

    memcpy(&own, tag_of(whose), sizeof own);
    return own ^ is_checksum(text, len);
}

static entry *find(vllm_tokens *t, const is_realm *whose, const char *text, size_t len)
{
    const uint64_t hash = hash_of(whose, text, len);

    for (entry *x = t->buckets[hash % BUCKETS]; x; x = x->chain)
        if (x->hash == hash && x->len == len && memcmp(x->text, text, len) == 0 && memcmp(x->tag, tag_of(whose), IS_HASH_BYTES) == 0) return x;
    return NULL;
}

static is_status append(int32_t **ids, uint32_t *n, const int32_t *more, uint32_t n_more)
{
    int32_t *all = is_realloc(*ids, ((size_t)*n + n_more + 1) * sizeof *all);

    if (!all) return vllm_no_memory();
    if (n_more) memcpy(all + *n, more, n_more * sizeof *all);
    *ids = all;
    *n += n_more;
    return INFERSCALE_OK;
}

/* Appends the kept ids of the text; false if it is not kept. */
static bool recall(vllm_tokens *t, const is_realm *whose, const char *text, size_t len, int32_t **ids, uint32_t *n, is_status *st)
{
    entry *x;

    pthread_mutex_lock(&t->lock);
    x = find(t, whose, text, len);
    if (x) {
        unlink_entry(t, x);
        link_newest(t, x);
        *st = append(ids, n, x->ids, x->n);
    }
    pthread_mutex_unlock(&t->lock);
    return x != NULL;
}

/* Without room it is not kept: the server is asked again. Nor what was revoked meanwhile: floors are raised before texts are dropped. */
static void keep(vllm *e, const is_realm *whose, const char *text, size_t len, const int32_t *ids, uint32_t n)
{
    vllm_tokens *t = e->tokens;
    entry *x = len <= BUDGET / 16 ? is_calloc(1, sizeof *x) : NULL;

    if (!x) return;
    *x = (entry){ .text = is_malloc(len + 1), .len = len, .ids = is_malloc((n + 1) * sizeof *ids), .n = n, .hash = hash_of(whose, text, len) };
    memcpy(x->tag, tag_of(whose), sizeof x->tag);
    if (!x->text || !x->ids) {
        free_entry(x);
        return;
    }
    memcpy(x->text, text, len);
    if (n) memcpy(x->ids, ids, n * sizeof *ids);
    pthread_mutex_lock(&t->lock);
    if (find(t, whose, text, len) || vllm_realm_check(e, whose) != INFERSCALE_OK) {
        free_entry(x);
    } else {
        x->chain = t->buckets[x->hash % BUCKETS];
        t->buckets[x->hash % BUCKETS] = x;
        link_newest(t, x);
        t->bytes += bytes_of(x);
        while (t->bytes > BUDGET) drop(t, t->oldest);
    }
    pthread_mutex_unlock(&t->lock);
}

/* ---- Asking -------------------------------------------------------------------------------------------------------------- */

static int add_bytes(const char *p, size_t n, void *buf)
{
    is_buf_add(buf, p, n);
    return is_buf_ok(buf) ? 0 : -1;
}

is_status vllm_ids_read(const vllm *e, const json_t *answer, int32_t **out, uint32_t *n)
{
    const json_t *list = json_object_get(answer, "tokens");
    size_t count = json_array_size(list);

    *out = NULL;
    *n = 0;
    if (!json_is_array(list) || count > MAX_TEXT)
        return is_fail(INFERSCALE_E_ENGINE, "vLLM's /tokenize gives no tokens; check that its version is a supported one");
    *out = is_malloc((count + 1) * sizeof **out);
    if (!*out) return vllm_no_memory();
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(list, i);

        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= (json_int_t)e->model->n_vocab) {
            is_free(*out);
            *out = NULL;
            return is_fail(INFERSCALE_E_ENGINE, "vLLM's /tokenize gives a token that is not in the vocabulary of %u; its servers must run "
                                                "one model", e->model->n_vocab);
        }
        (*out)[(*n)++] = (int32_t)json_integer_value(id);
    }
    return INFERSCALE_OK;
}

/* Appends the ids of the text as the server's tokenizer has it. */
static is_status ask(vllm *e, const is_realm *whose, const char *text, size_t len, int32_t **ids, uint32_t *n)
{
    json_t *request = json_pack("{s:o, s:b}", "prompt", json_stringn(text, len), "add_special_tokens", 0);
    json_t *answer = NULL;
    is_buf body = IS_BUF_INIT;
    int32_t *got = NULL;
    uint32_t n_got = 0;
    is_status st = INFERSCALE_OK;

    if (!request || json_dump_callback(request, add_bytes, &body, JSON_COMPACT) != 0)
        st = is_fail(INFERSCALE_E_INVALID, "a text of %zu bytes cannot be tokenised; check that it is UTF-8", len);
    json_decref(request);
    if (st == INFERSCALE_OK)
        st = vllm_ask_any(e, NULL, "/tokenize", (const char *)body.data, (vllm_flags){ 0 }, vllm_limit.small_ms, &answer);
    if (st == INFERSCALE_OK) st = vllm_ids_read(e, answer, &got, &n_got);
    if (st == INFERSCALE_OK) {
        VLLM_COUNT(e, tokenised, 1);
        keep(e, whose, text, len, got, n_got);
        st = append(ids, n, got, n_got);
    }
    is_free(got);
    json_decref(answer);
    is_buf_free(&body);
    return st;
}

static is_status piece(vllm *e, const is_realm *whose, const char *text, size_t len, int32_t **ids, uint32_t *n)
{
    is_status st = INFERSCALE_OK;

    if (len == 0) return INFERSCALE_OK;
    if (!recall(e->tokens, whose, text, len, ids, n, &st)) return ask(e, whose, text, len, ids, n);
    VLLM_COUNT(e, token_cache_hits, 1);
    return st;
}

/* ---- Literals of control tokens ------------------------------------------------------------------------------------------ */

static size_t first_character(const char *s, size_t len)
{
    size_t n = 1;

    while (n < len && ((unsigned char)s[n] & 0xc0) == 0x80) n++;
    return n;
}

/* Where the literal that begins at text[0] must be cut; 0 if none begins there. */
static size_t literal_at(const vllm_model *m, const char *text, size_t len)
{
    for (uint32_t i = 0; i < m->n_special; i++) {
        const vllm_special *s = &m->special[i];
        size_t cut = s->len <= len && s->text[0] == text[0] && memcmp(s->text, text, s->len) == 0 ? first_character(s->text, s->len) : 0;

        if (cut && cut < s->len) return cut;
    }
    return 0;
}

/* Every occurrence of a literal is cut, also those that overlap: no piece holds a whole one. */
static is_status split(vllm *e, const is_realm *whose, const char *text, size_t len, int32_t **ids, uint32_t *n)
{
    size_t begin = 0, cuts = 0;

    for (size_t at = 0; at < len; at++) {
        size_t cut = literal_at(e->model, text + at, len - at);

        if (!cut || at + cut <= begin) continue;
        if (++cuts > MAX_CUTS)
            return is_fail(INFERSCALE_E_INVALID, "the text holds more than %d literals of the model's control tokens; take them out", MAX_CUTS);
        IS_TRY(piece(e, whose, text + begin, at + cut - begin, ids, n));
        begin = at + cut;
    }
    if (cuts) VLLM_COUNT(e, split_texts, 1);
    return piece(e, whose, text + begin, len - begin, ids, n);
}

static is_status no_special(vllm *e, const int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const vllm_special *s = vllm_model_special(e->model, ids[i]);

        if (!s) continue;
        VLLM_COUNT(e, refused_texts, 1);
        return is_fail(INFERSCALE_E_INVALID, "the text would become the model's control token %d whatever is done; change what reads like '%.40s'",
                       s->id, s->text);
    }
    return INFERSCALE_OK;
}

/* ---- The table's functions ----------------------------------------------------------------------------------------------- */

is_status vllm_tokenize(void *impl, const is_realm *whose, const char *text, size_t len, bool parse_special, bool add_bos,
                        int32_t **out, uint32_t *n)
{
    vllm *e = impl;
    is_status st;

    *out = NULL;
    *n = 0;
    if (len > MAX_TEXT) return is_fail(INFERSCALE_E_INVALID, "the text has %zu bytes, which is too long to tokenise; split it", len);
    st = append(out, n, &e->model->bos, add_bos && e->model->adds_bos && e->model->bos >= 0);
    if (st == INFERSCALE_OK && parse_special) st = piece(e, NULL, text, len, out, n);
    if (st == INFERSCALE_OK && !parse_special) {
        uint32_t own = *n;

        st = split(e, whose, text, len, out, n);
        if (st == INFERSCALE_OK) st = no_special(e, *out + own, *n - own);
    }
    if (st == INFERSCALE_OK) return st;
    is_free(*out);
    *out = NULL;
    *n = 0;
    return st;
}

void vllm_tokens_free(void *impl, int32_t *tokens)
{
    (void)impl;
    is_free(tokens);
}

int vllm_token_piece(void *impl, int32_t token, char *buf, int cap)
{
    const vllm_model *m = ((vllm *)impl)->model;
    uint32_t n;

    if (token < 0 || (uint32_t)token >= m->n_vocab) return 0;
    n = m->piece_at[token + 1] - m->piece_at[token];
    if ((int)n > cap) return -(int)n;
    if (n) memcpy(buf, m->pieces + m->piece_at[token], n);
    return (int)n;
}

bool vllm_is_eog(void *impl, int32_t token)
{
    return vllm_model_is_eos(((vllm *)impl)->model, token);
}
