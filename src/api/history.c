/* history.c - see history.h. */
#include "api/history.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static is_status check_role(const inferscale_message *m, size_t i, const char *due)
{
    if (!m->role || (strcmp(m->role, "system") != 0 && strcmp(m->role, "user") != 0 && strcmp(m->role, "assistant") != 0))
        return is_fail(INFERSCALE_E_INVALID, "message %zu has no known role; use \"system\", \"user\" or \"assistant\"", i);
    if (strcmp(m->role, due) == 0) return INFERSCALE_OK;
    if (strcmp(m->role, "system") == 0)
        return is_fail(INFERSCALE_E_INVALID, "message %zu is a system message behind others; put all system messages first", i);
    return is_fail(INFERSCALE_E_INVALID, "message %zu is the %s's where the %s's is due; let user and assistant speak by turns, the user first",
                   i, m->role, due);
}

static is_status check_content(const inferscale_message *m, size_t i)
{
    char what[64];

    snprintf(what, sizeof what, "content of message %zu", i);
    return is_text_check(m->content, what);
}

static is_status join_system(const inferscale_message *m, size_t n, char **out)
{
    is_buf b = IS_BUF_INIT;

    *out = NULL;
    if (n == 0) return INFERSCALE_OK;
    for (size_t i = 0; i < n; i++) {
        if (i) is_buf_str(&b, "\n\n");
        is_buf_str(&b, m[i].content);
    }
    *out = is_buf_take(&b);
    return *out ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for the messages");
}

is_status is_history_read(const inferscale_message *messages, size_t n, is_history *out)
{
    size_t n_system = 0, n_said;

    memset(out, 0, sizeof *out);
    if (!messages || n == 0) return is_fail(INFERSCALE_E_INVALID, "there are no messages; give at least the user's");
    while (n_system < n && messages[n_system].role && strcmp(messages[n_system].role, "system") == 0) n_system++;
    n_said = n - n_system;
    for (size_t i = n_system; i < n; i++) IS_TRY(check_role(&messages[i], i + 1, (i - n_system) % 2 ? "assistant" : "user"));
    if (n_said % 2 == 0)
        return is_fail(INFERSCALE_E_INVALID, n_said ? "the last message is the assistant's; end with the user's, which is to be answered"
                                                    : "there are only system messages; end with the user's, which is to be answered");
    for (size_t i = 0; i < n; i++) IS_TRY(check_content(&messages[i], i + 1));
    out->said = messages + n_system;
    out->n_turns = n_said / 2;
    out->question = messages[n - 1].content;
    out->asked = is_calloc(out->n_turns + 1, sizeof *out->asked);
    out->answered = is_calloc(out->n_turns + 1, sizeof *out->answered);
    if (!out->asked || !out->answered) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the messages");
    return join_system(messages, n_system, &out->system);
}

void is_history_free(is_history *h)
{
    is_free(h->system);
    is_free(h->asked);
    is_free(h->answered);
    memset(h, 0, sizeof *h);
}

/* ---- Keys ---------------------------------------------------------------------------------------------------------------- */

static is_status begin(const is_asking *a, const char *what, is_hash **h)
{
    IS_TRY(is_hash_new(a->has_partition ? a->p.key : NULL, h));
    is_hash_field(*h, what, strlen(what));
    return INFERSCALE_OK;
}

static void text(is_hash *h, const char *s)
{
    is_hash_u64(h, s != NULL);
    is_hash_field(h, s ? s : "", s ? strlen(s) : 0);
}

/* Whose memory, seen through which filters: what was placed for others is not shown to this one. */
static is_status root(const is_history *hist, const is_asking *a, is_key out)
{
    static const inferscale_scope nobody;
    static const inferscale_recall_options any;
    const inferscale_scope *s = a->scope ? a->scope : &nobody;
    const inferscale_recall_options *r = a->o.recall ? a->o.recall : &any;
    is_hash *h = NULL;

    IS_TRY(begin(a, "conversation-1", &h));
    is_hash_u64(h, a->scope != NULL);
    text(h, s->tenant);
    text(h, s->user);
    text(h, s->agent);
    text(h, s->run);
    text(h, s->app);
    text(h, r->metadata);
    is_hash_u64(h, (uint64_t)r->from);
    is_hash_u64(h, (uint64_t)r->to);
    is_hash_u64(h, (uint64_t)r->as_of);
    text(h, hist->system);
    if (a->c.cache_salt) text(h, a->c.cache_salt); /* else the keys in older stores */
    is_hash_end(h, out);
    return INFERSCALE_OK;
}

static is_status add(const is_asking *a, const is_key before, const char *role, const char *content, is_key out)
{
    is_hash *h = NULL;

    IS_TRY(begin(a, "message-1", &h));
    is_hash_field(h, before, IS_HASH_BYTES);
    text(h, role);
    text(h, content);
    is_hash_end(h, out);
    return INFERSCALE_OK;
}

is_status is_history_keys(is_history *h, const is_asking *a)
{
    IS_TRY(root(h, a, h->answered[0]));
    for (size_t i = 0; i <= h->n_turns; i++) {
        IS_TRY(add(a, h->answered[i], "user", h->said[2 * i].content, h->asked[i]));
        if (i < h->n_turns) IS_TRY(add(a, h->asked[i], "assistant", h->said[2 * i + 1].content, h->answered[i + 1]));
    }
    return INFERSCALE_OK;
}

is_status is_history_told(const is_history *h, const is_asking *a, const char *answer, is_key out)
{
    return add(a, h->asked[h->n_turns], "assistant", answer, out);
}

is_status is_history_talk(const is_asking *a, const is_key prefix, size_t n_dropped, is_key out)
{
    is_hash *h = NULL;

    IS_TRY(begin(a, "talk-1", &h));
    is_hash_field(h, prefix, IS_HASH_BYTES);
    is_hash_u64(h, (uint64_t)a->o.mode);
    is_hash_u64(h, (uint64_t)a->o.stage);
    is_hash_u64(h, n_dropped);
    is_hash_end(h, out);
    return INFERSCALE_OK;
}
