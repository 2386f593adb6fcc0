/* chat.c - a conversation: header | (memory_i | user_i | assistant_i)* | memory_n | question.
 *
 * Memory stands before the newest user turn, so earlier turns stay in the engine's cache and changed memory never costs their
 * prefill. A fact placed in an earlier turn is not placed again. If a placed fact was forgotten or changed, or something that its rows
 * were computed from, its rows must go: the run is dropped and the turns are computed again without memory (noted in the answer's
 * fallback). What was said stays said: answers are part of the conversation. */
#include <pthread.h>
#include <string.h>

#include "api/answer.h"
#include "base/mem.h"

enum { TRIES = 5 };

struct inferscale_chat {
    inferscale *is;          /* NULL once the store is closed */
    inferscale_chat *next;   /* in the handle's list */
    char *tenant, *user, *agent, *run_id, *app;
    inferscale_scope scope;
    is_run *run;
    pthread_mutex_t busy;    /* held while it speaks; who forgets only tries it, for one that speaks looks for itself */
    int settled;             /* atomic: while it speaks, once its question holds all that is in the run */
    int64_t partition;       /* whose facts are in the run; 0 = none */
    is_dep *placed;          /* [n_placed] every fact in the run */
    size_t n_placed;
    is_names segments;       /* whose rows are in the run */
    is_made_of rows;         /* of which rows the facts in the run were made */
    is_buf said;             /* token ids of all turns without memory: what a recomputation starts from */
    int32_t pending;         /* sampled, not yet run; -1 = none */
    bool lost;               /* the run was dropped: the next turn starts from said */
};

static is_status copy_scope(inferscale_chat *c, const inferscale_scope *s)
{
    c->tenant = is_strdup(s->tenant);
    c->user = is_strdup(s->user);
    c->agent = is_strdup(s->agent);
    c->run_id = is_strdup(s->run);
    c->app = is_strdup(s->app);
    c->scope = (inferscale_scope){ c->tenant, c->user, c->agent, c->run_id, c->app };
    if ((s->tenant && !c->tenant) || (s->user && !c->user) || (s->agent && !c->agent) || (s->run && !c->run_id) || (s->app && !c->app))
        return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    return INFERSCALE_OK;
}

is_status inferscale_chat_open(inferscale *is, const inferscale_scope *scope, inferscale_chat **out)
{
    inferscale_chat *c;
    is_status st;

    if (!out) return is_fail(INFERSCALE_E_INVALID, "there is no place for the chat; pass its address");
    *out = NULL;
    IS_TRY(is_handle_check(is));
    if (!scope) return is_fail(INFERSCALE_E_INVALID, "no scope given; say whose memory to use (user, agent, run or app)");
    c = is_calloc(1, sizeof *c);
    if (!c) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    c->is = is;
    c->pending = -1;
    pthread_mutex_init(&c->busy, NULL);
    st = copy_scope(c, scope);
    if (st != INFERSCALE_OK) {
        inferscale_chat_close(c);
        return st;
    }
    pthread_mutex_lock(&is->chats_lock);
    c->next = is->chats;
    is->chats = c;
    pthread_mutex_unlock(&is->chats_lock);
    *out = c;
    return INFERSCALE_OK;
}

static void leave_handle(inferscale_chat *c)
{
    inferscale_chat **p;

    pthread_mutex_lock(&c->is->chats_lock);
    for (p = &c->is->chats; *p && *p != c; p = &(*p)->next) continue;
    if (*p) *p = c->next;
    pthread_mutex_unlock(&c->is->chats_lock);
}

static void end_run(inferscale_chat *c)
{
    if (c->run) is_engine_finish(c->is->engine, c->run);
    c->run = NULL;
    c->n_placed = 0;
    is_made_of_free(&c->rows);
    is_names_free(&c->segments);
    c->pending = -1;
}

/* The run's rows may not be used any more: the next turn starts from what was said. */
static void lose_run(inferscale_chat *c)
{
    end_run(c);
    c->lost = c->said.len > 0;
}

void is_handle_end_chats(inferscale *is)
{
    for (inferscale_chat *c = is->chats; c; c = c->next) {
        end_run(c);
        c->is = NULL;
    }
    is->chats = NULL;
}

void inferscale_chat_close(inferscale_chat *c)
{
    if (!c) return;
    if (c->is) leave_handle(c);
    end_run(c);
    pthread_mutex_destroy(&c->busy);
    is_free(c->tenant);
    is_free(c->user);
    is_free(c->agent);
    is_free(c->run_id);
    is_free(c->app);
    is_free(c->placed);
    is_buf_free(&c->said);
    is_free(c);
}

/* ---- Placements ---------------------------------------------------------------------------------------------------------- */

/* Drops the run if it holds what is not there any more. */
static is_status check_placed(inferscale_chat *c, const is_partition *p)
{
    bool holds = true;

    if (!c->run || !c->n_placed || c->partition != p->id) return INFERSCALE_OK;
    IS_TRY(is_bank_still_holds(c->is->bank, p, c->placed, c->n_placed, &c->segments, 0, &holds));
    if (!holds) lose_run(c);
    return INFERSCALE_OK;
}

size_t is_handle_drop_chats(inferscale *is, const is_partition *p)
{
    size_t n = 0;

    pthread_mutex_lock(&is->chats_lock);
    for (inferscale_chat *c = is->chats; c; c = c->next) {
        if (pthread_mutex_trylock(&c->busy) != 0) {
            n += !__atomic_load_n(&c->settled, __ATOMIC_ACQUIRE);
            continue;
        }
        if (check_placed(c, p) != INFERSCALE_OK) lose_run(c);
        pthread_mutex_unlock(&c->busy);
    }
    pthread_mutex_unlock(&is->chats_lock);
    return n;
}

/* What the question holds is now in the run. */
static is_status note_placed(inferscale_chat *c, const is_hold *h)
{
    is_dep *placed = is_realloc(c->placed, (h->n_facts + 1) * sizeof *placed);

    if (!placed) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    c->placed = placed;
    if (h->n_facts) memcpy(placed, h->facts, h->n_facts * sizeof *placed);
    c->n_placed = h->n_facts;
    c->partition = h->p.id;
    is_names_free(&c->segments);
    for (size_t i = 0; i < h->segments.n; i++) IS_TRY(is_names_add(&c->segments, h->segments.names[i]));
    return INFERSCALE_OK;
}

/* ---- Turns --------------------------------------------------------------------------------------------------------------- */

static is_status remember_tokens(inferscale_chat *c, const int32_t *ids, size_t n)
{
    is_buf_add(&c->said, ids, n * sizeof *ids);
    return is_buf_ok(&c->said) ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");
}

/* Starts a run that holds the earlier turns without any memory. */
static is_status replay(inferscale_chat *c, is_asking *a)
{
    is_part part = { .role = IS_ROLE_TURN, .source = IS_SRC_COMPUTED, .tokens = (const int32_t *)(const void *)c->said.data,
                     .n_tokens = (uint32_t)(c->said.len / sizeof(int32_t)) };
    const is_plan plan = { .n_parts = 1, .parts = &part, .n_tokens = part.n_tokens };
    is_run_opts o = { .no_prefix_cache = true, .cancel = a->o.cancel, .stop = &a->hold.stop };
    is_run_stats stats;

    IS_TRY(is_asking_realm(a, &o.realm));
    is_asking_note(a, INFERSCALE_FALLBACK_CHANGED_EARLIER,
                   "a fact used earlier was forgotten or changed: %u tokens of the conversation were computed again without it",
                   part.n_tokens);
    c->lost = false;
    return is_engine_start(c->is->engine, &plan, &o, &c->run, &stats);
}

/* The turn as the conversation keeps it: its frame and words, no memory. */
static is_status keep_question(inferscale_chat *c, const is_plan *plan, bool first)
{
    const is_profile *p = is_handle_profile(c->is);

    IS_TRY(first ? remember_tokens(c, p->header_plain.ids, p->header_plain.n) : remember_tokens(c, p->next_plain.ids, p->next_plain.n));
    for (uint32_t i = 0; i < plan->n_parts; i++)
        if (plan->parts[i].role == IS_ROLE_QUESTION || i + 1 == plan->n_parts)
            IS_TRY(remember_tokens(c, plan->parts[i].tokens, plan->parts[i].n_tokens));
    return INFERSCALE_OK;
}

static is_status feed_pending(inferscale_chat *c)
{
    int32_t token = c->pending;

    c->pending = -1;
    return token >= 0 && c->run ? is_engine_feed(c->is->engine, c->run, token) : INFERSCALE_OK;
}

/* Plans and runs the turn once. E_STALE: the memory changed on the way. */
static is_status place_and_run(inferscale_chat *c, is_asking *a, bool first, is_planned **planned)
{
    bool fresh = false;
    is_status st;

    is_asking_again(a);
    IS_TRY(is_asking_lease(a));
    if (a->has_partition) IS_TRY(check_placed(c, &a->p));
    IS_TRY(is_hold_add(&a->hold, c->placed, c->n_placed, &c->segments));
    __atomic_store_n(&c->settled, 1, __ATOMIC_RELEASE);
    if (c->lost) IS_TRY(replay(c, a));
    a->resident = c->rows;
    a->skip = c->placed;
    a->n_skip = c->n_placed;
    IS_TRY(feed_pending(c));
    a->shape = (is_plan_opts){ .next_turn = !first, .pos0 = c->run ? is_engine_run_tokens(c->is->engine, c->run) : 0 };
    st = is_asking_plan(a, planned);
    if (st == INFERSCALE_E_CONTEXT && !first)
        st = is_fail(INFERSCALE_E_CONTEXT, "the conversation is full: this model's maximum context length is %u tokens; start a new "
                     "one, or open the model with a larger context", is_engine_describe(c->is->engine)->n_ctx);
    if (st == INFERSCALE_OK) st = is_asking_fresh(a, *planned, &fresh);
    if (st == INFERSCALE_OK && !fresh) st = is_fail(INFERSCALE_E_STALE, "the memory changed; plan again");
    if (st == INFERSCALE_OK) st = is_asking_run(a, *planned, &c->run);
    return st == INFERSCALE_OK ? note_placed(c, &a->hold) : st;
}

static is_status say(inferscale_chat *c, is_asking *a)
{
    bool first = c->said.len == 0;
    is_status st = INFERSCALE_E_STALE;

    for (int i = 0; i < TRIES && st == INFERSCALE_E_STALE; i++) {
        is_planned *planned = NULL;

        st = place_and_run(c, a, first, &planned);
        if (st == INFERSCALE_OK) st = is_asking_generate(a, c->run, &c->pending);
        if (st == INFERSCALE_OK) st = keep_question(c, is_planned_plan(planned), first);
        is_planned_free(planned);
        if (st == INFERSCALE_E_STALE) lose_run(c);
    }
    if (st == INFERSCALE_E_STALE)
        st = is_fail(INFERSCALE_E_STALE, "the memory changed %d times while the answer was planned; say it again", TRIES);
    if (st != INFERSCALE_OK) return st;
    is_made_of_free(&c->rows);
    c->rows = a->used;
    a->used = a->resident = (is_made_of){ 0 };
    return INFERSCALE_OK;
}

/* The answer's tokens join the turns by their text: what is replayed is what the user saw. */
static is_status keep_answer(inferscale_chat *c, is_asking *a)
{
    const char *text = a->answer->text;
    const is_realm *whose = NULL;
    is_tokens t = { 0 };
    is_status st = is_asking_realm(a, &whose);

    if (st == INFERSCALE_OK && text[0]) st = is_profile_question(c->is->engine, whose, text, &t);
    if (st == INFERSCALE_OK) st = remember_tokens(c, t.ids, t.n);
    is_tokens_free(&t);
    return st;
}

/* A turn that failed was not said, neither half of it, and the next can be. */
static void unsay(inferscale_chat *c, size_t before)
{
    c->said.failed = false;
    c->said.len = before;
    if (c->said.data) c->said.data[before] = 0;
}

is_status inferscale_chat_say(inferscale_chat *c, const char *text, const inferscale_ask_options *options, inferscale_answer **out)
{
    size_t before;
    is_asking a;
    is_status st;

    if (!out) return is_fail(INFERSCALE_E_INVALID, "there is no place for the answer; pass its address");
    *out = NULL;
    if (!c) return is_fail(INFERSCALE_E_INVALID, "the chat is NULL; open one with inferscale_chat_open");
    pthread_mutex_lock(&c->busy);
    before = c->said.len;
    memset(&a, 0, sizeof a);
    st = c->is ? is_asking_begin(&a, c->is, &c->scope, text, options)
               : is_fail(INFERSCALE_E_INVALID, "the store of this chat was closed; open it again, and a chat in it");
    if (st == INFERSCALE_OK) st = is_asking_embed(&a);
    if (st == INFERSCALE_OK) st = say(c, &a);
    if (st == INFERSCALE_OK) st = keep_answer(c, &a);
    if (st == INFERSCALE_OK) st = is_asking_finish(&a, out);
    if (st != INFERSCALE_OK) unsay(c, before);
    /* what the run holds is unknown now, or has gone: compute the turns again next time */
    if (c->run && ((st != INFERSCALE_OK && st != INFERSCALE_E_INVALID) || is_hold_stopped(&a.hold))) lose_run(c);
    __atomic_store_n(&c->settled, 0, __ATOMIC_RELEASE);
    is_asking_free(&a);
    pthread_mutex_unlock(&c->busy);
    return st;
}
