/* complete.c - the newest message of a conversation that is sent whole each time.
 *
 * Where the conversation stands comes from one of two places:
 *
 *   a talk (talks.h)   the engine holds all but the newest turn: it goes on from there
 *   the bank           what memory stood before each earlier turn (its placement), found by the hash of the messages up to there; the
 *                      turns are put into the engine again as they stood. A turn whose placement is not there any more, or holds what
 *                      was changed, forgotten or has expired, is computed without memory
 *
 * Then it is a question like any other: what is not placed yet is found, placed before the newest turn, and answered. */
#include <math.h>
#include <string.h>

#include "api/answer.h"
#include "api/history.h"
#include "api/listen.h"
#include "api/stops.h"
#include "api/talks.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"

enum { TRIES = 5, BIAS_MAX = 1024, TOP_MAX = 20, IDS_MAX = 1000 };

typedef struct completing {
    is_asking a;
    is_history h;
    is_tokens header, header_plain; /* of the caller's system text; n 0 = the handle's */
    size_t n_dropped;        /* oldest turns left out */
    is_plan_turn *turns;     /* [n_turns] those that stay, from the bank; NULL with a talk */
    size_t n_turns;
    is_tokens *said;         /* [2 * h.n_turns + 1] of the messages and the question, as far as they were needed; kept over tries */
    size_t n_over;           /* so many oldest turns cannot fit, whatever stands between them */
    is_talk *talk;
    is_run *run;
    is_dep *skip;            /* placed in earlier turns */
} completing;

/* ---- What is asked ------------------------------------------------------------------------------------------------------- */

static is_status check_stops(const inferscale_complete_options *o)
{
    if (o->n_stop > IS_STOPS_MAX || (o->n_stop && !o->stop))
        return is_fail(INFERSCALE_E_INVALID, "there are %zu stop strings; give at most %d", o->n_stop, IS_STOPS_MAX);
    for (size_t i = 0; i < o->n_stop; i++) {
        size_t len = o->stop[i] ? strlen(o->stop[i]) : 0;

        if (len == 0 || len > IS_STOP_BYTES_MAX || !is_utf8_valid(o->stop[i], len, NULL))
            return is_fail(INFERSCALE_E_INVALID, "stop string %zu is not UTF-8 of 1 to %d bytes", i + 1, IS_STOP_BYTES_MAX);
    }
    return INFERSCALE_OK;
}

static is_status check_ids(const inferscale_complete_options *o)
{
    if (o->n_ids > IDS_MAX || (o->n_ids && !o->ids))
        return is_fail(INFERSCALE_E_INVALID, "there are %zu ids; give at most %d", o->n_ids, IDS_MAX);
    for (size_t i = 0; i < o->n_ids; i++)
        for (size_t j = 0; j < i; j++)
            if (o->ids[i] == o->ids[j]) return is_fail(INFERSCALE_E_INVALID, "id %lld is given twice; leave one out", (long long)o->ids[i]);
    return INFERSCALE_OK;
}

static is_status check_options(const inferscale_complete_options *o)
{
    if (o->struct_size < sizeof *o)
        return is_fail(INFERSCALE_E_INVALID, "the options are not initialised; use INFERSCALE_COMPLETE_OPTIONS_INIT");
    if (o->layout != INFERSCALE_LAYOUT_TURNS && o->layout != INFERSCALE_LAYOUT_FRONT)
        return is_fail(INFERSCALE_E_INVALID, "layout is %d; use INFERSCALE_LAYOUT_TURNS or _FRONT", o->layout);
    if (o->top_logprobs > TOP_MAX) return is_fail(INFERSCALE_E_INVALID, "top_logprobs is %u; use at most %d", o->top_logprobs, TOP_MAX);
    if (!(o->presence_penalty >= -2 && o->presence_penalty <= 2) || !(o->frequency_penalty >= -2 && o->frequency_penalty <= 2))
        return is_fail(INFERSCALE_E_INVALID, "the penalties are %g and %g; use values from -2 to 2", o->presence_penalty, o->frequency_penalty);
    if (o->n_bias > BIAS_MAX || (o->n_bias && !o->bias))
        return is_fail(INFERSCALE_E_INVALID, "there are %zu biases; give at most %d", o->n_bias, BIAS_MAX);
    for (size_t i = 0; i < o->n_bias; i++)
        if (isnan(o->bias[i].bias)) return is_fail(INFERSCALE_E_INVALID, "the bias of token %d is not a number", o->bias[i].token);
    if (o->endless && o->grammar)
        return is_fail(INFERSCALE_E_INVALID, "an answer cannot be endless and follow a grammar; leave one of the two out");
    if (o->on_full != 0 && o->on_full != 1) return is_fail(INFERSCALE_E_INVALID, "on_full is %d; use 0 or 1", o->on_full);
    IS_TRY(check_ids(o));
    return check_stops(o);
}

/* The model's tokens that end an answer. With out they are put there as never to be chosen. */
static size_t endings(is_engine *e, is_bias *out)
{
    const uint32_t n_vocab = is_engine_describe(e)->n_vocab;
    size_t n = 0;

    for (uint32_t token = 0; token < n_vocab; token++) {
        if (!is_engine_is_eog(e, (int32_t)token)) continue;
        if (out) out[n] = (is_bias){ (int32_t)token, -INFINITY };
        n++;
    }
    return n;
}

/* After the engine is loaded: it knows the endings. */
static is_status take_options(completing *c, const inferscale_complete_options *o)
{
    is_engine *e = c->a.is->engine;
    const size_t n_endings = o->endless ? endings(e, NULL) : 0;

    c->a.c = *o;
    c->a.bias = is_calloc(o->n_bias + n_endings + 1, sizeof *c->a.bias);
    if (!c->a.bias) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    for (size_t i = 0; i < o->n_bias; i++) c->a.bias[i] = (is_bias){ o->bias[i].token, (float)o->bias[i].bias };
    if (o->endless) c->a.c.n_bias += endings(e, c->a.bias + o->n_bias);
    return INFERSCALE_OK;
}

/* ---- The system text ----------------------------------------------------------------------------------------------------- */

/* The caller's header, unless it is the one that facts are encoded after. */
static is_status read_header(completing *c)
{
    const is_profile *own = is_handle_profile(c->a.is);

    const is_realm *whose;

    if (!c->h.system) return INFERSCALE_OK;
    IS_TRY(is_asking_realm(&c->a, &whose));
    const is_fit fit = { is_asking_room(&c->a), c->a.o.cancel };
    IS_TRY(is_profile_system(c->a.is->engine, whose, c->h.system, &fit, &c->header, &c->header_plain));
    if (c->header.n == own->header.n && memcmp(c->header.ids, own->header.ids, own->header.n * sizeof(int32_t)) == 0) {
        is_tokens_free(&c->header);
        is_tokens_free(&c->header_plain);
    }
    return INFERSCALE_OK;
}

static const char *header_name(const completing *c)
{
    if (c->a.o.mode == INFERSCALE_MODE_NONE) return "none";
    return c->header.n ? "generic" : "exact";
}

/* ---- Where the conversation stands --------------------------------------------------------------------------------------- */

static void let_go(completing *c)
{
    if (c->run) is_engine_finish(c->a.is->engine, c->run);
    c->run = NULL;
    is_talk_end(c->a.is, c->talk);
    c->talk = NULL;
    for (size_t i = 0; i < c->n_turns; i++) is_plan_turn_free(&c->turns[i]);
    is_free(c->turns);
    c->turns = NULL;
    c->n_turns = 0;
    is_free(c->skip);
    c->skip = NULL;
    c->a.skip = NULL;
    c->a.n_skip = 0;
    c->a.resident = (is_made_of){ 0 };
    c->a.shape = (is_plan_opts){ 0 };
}

static bool in_turns(const completing *c)
{
    return c->a.c.layout == INFERSCALE_LAYOUT_TURNS;
}

/* The talk that stands where the messages do, if one is kept. It may have left out the oldest turns. */
static is_status find_talk(completing *c)
{
    const size_t most = c->a.c.on_full ? c->h.n_turns : 1;

    if (!in_turns(c)) return INFERSCALE_OK;
    for (size_t dropped = 0; dropped < most && dropped < c->h.n_turns; dropped++) {
        is_key key;

        IS_TRY(is_history_talk(&c->a, c->h.answered[c->h.n_turns], dropped, key));
        c->talk = is_talks_take(c->a.is, c->a.has_partition ? &c->a.p : NULL, key);
        c->n_dropped = dropped;
        if (c->talk) return is_hold_add(&c->a.hold, c->talk->facts, c->talk->n_facts, &c->talk->segments);
    }
    c->n_dropped = 0;
    return INFERSCALE_OK;
}

/* What an earlier turn holds is held from now on: finding the newest turn's facts may move the lease, and looks at what is held then. */
static is_status hold_turn(completing *c, const is_plan_turn *turn)
{
    is_dep *deps = is_calloc(turn->n_facts + 1, sizeof *deps);
    is_names segments = { 0 };
    is_status st = deps ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");

    for (size_t i = 0; st == INFERSCALE_OK && i < turn->n_facts; i++) {
        deps[i] = (is_dep){ turn->facts[i].id, turn->facts[i].version };
        if (turn->facts[i].segment) st = is_names_add(&segments, is_segment_info(turn->facts[i].segment)->name);
    }
    if (st == INFERSCALE_OK) st = is_hold_add(&c->a.hold, deps, turn->n_facts, &segments);
    is_names_free(&segments);
    is_free(deps);
    return st;
}

/* The facts of a placement, as they are remembered; *lost: one of them is not any more. */
static is_status load_placed(completing *c, const is_dep *deps, size_t n, is_plan_turn *turn, bool *lost)
{
    const is_names none = { 0 };
    inferscale_list *items = NULL;
    bool holds = true;
    is_status st;

    IS_TRY(is_bank_still_holds(c->a.is->bank, &c->a.p, deps, n, &none, c->a.hold.as_of, &holds));
    *lost = !holds;
    if (!holds || n == 0) return INFERSCALE_OK;
    IS_TRY(is_bank_get_versions(c->a.is->bank, &c->a.p, deps, n, &items));
    turn->facts = is_calloc(n, sizeof *turn->facts);
    turn->n_facts = turn->facts ? items->n : 0;
    st = !turn->facts ? is_fail(INFERSCALE_E_NOMEM, "out of memory") : INFERSCALE_OK;
    if (st == INFERSCALE_OK && items->n != n) st = is_asking_gone();
    if (st == INFERSCALE_OK) st = is_asking_facts(&c->a, items, n, turn->facts);
    if (st == INFERSCALE_OK) st = hold_turn(c, turn);
    inferscale_list_free(items);
    return st;
}

/* What was placed before a turn, in this view or in one that holds its rows in another codec: where memory stands does not hang on that. */
static is_status find_placement(completing *c, const is_key turn, is_dep **deps, size_t *n)
{
    const is_profile *profile = is_handle_profile(c->a.is);
    is_status st = is_bank_placement(c->a.is->bank, &c->a.p, profile->fingerprint, turn, deps, n);

    for (int codec = 0; codec < IS_CODECS && st == INFERSCALE_E_NOTFOUND; codec++)
        if ((is_codec)codec != profile->codec) st = is_bank_placement(c->a.is->bank, &c->a.p, profile->in_codec[codec], turn, deps, n);
    return st;
}

/* The memory that stood before turn i. An owner of whom nothing is remembered had an empty one. */
static is_status load_memory(completing *c, size_t i, is_plan_turn *turn)
{
    inferscale_answer *ans = c->a.answer;
    is_dep *deps = NULL;
    bool lost = false;
    size_t n = 0;
    is_status st;

    turn->with_memory = c->a.o.mode != INFERSCALE_MODE_NONE && in_turns(c);
    if (!turn->with_memory || !c->a.has_partition) return INFERSCALE_OK;
    st = find_placement(c, c->h.asked[i], &deps, &n);
    if (st == INFERSCALE_OK) st = load_placed(c, deps, n, turn, &lost);
    is_free(deps);
    if (st == INFERSCALE_E_NOTFOUND) lost = true;
    else if (st != INFERSCALE_OK) return st;
    turn->with_memory = !lost;
    ans->n_placed_lost += lost;
    ans->n_placed_kept += !lost;
    return INFERSCALE_OK;
}

static is_status too_long(const completing *c, const char *at_least, uint64_t need, uint32_t room)
{
    const uint32_t n_ctx = is_engine_describe(c->a.is->engine)->n_ctx;

    if (room == 0)
        return is_fail(INFERSCALE_E_CONTEXT, "this model's maximum context length is %u tokens: an answer of %u tokens leaves no room for the "
                       "messages; ask for fewer answer tokens, or open the model with a larger context", n_ctx, c->a.o.max_tokens);
    return is_fail(INFERSCALE_E_CONTEXT, "this model's maximum context length is %u tokens, which leaves %u beside an answer of %u, but the "
                   "messages need %s%llu; shorten or drop messages%s, ask for fewer answer tokens, or open the model with a larger context",
                   n_ctx, room, c->a.o.max_tokens, at_least, (unsigned long long)need,
                   c->a.c.on_full || c->h.n_turns == 0 ? "" : ", let the oldest be left out (on_full)");
}

/* The tokens of a message, where it may fit into what is left of the room. Borrowed. */
static is_status tokens_of(completing *c, size_t i, uint32_t room, const is_tokens **out)
{
    const is_fit fit = { room, c->a.o.cancel };
    const char *text = i < 2 * c->h.n_turns ? c->h.said[i].content : c->h.question;
    const is_realm *whose;

    *out = &c->said[i];
    if (c->said[i].ids) return INFERSCALE_OK;
    IS_TRY(is_asking_realm(&c->a, &whose));
    return is_profile_words(c->a.is->engine, whose, text, &fit, &c->said[i]);
}

/* Takes a message off the room. E_CONTEXT: there is not enough. */
static is_status take_room(completing *c, size_t i, uint32_t *room)
{
    const is_tokens *t;

    IS_TRY(tokens_of(c, i, *room, &t));
    if (t->n > *room) return is_fail(INFERSCALE_E_CONTEXT, "a message has %u tokens and %u are left", t->n, *room);
    *room -= t->n;
    return INFERSCALE_OK;
}

/* The newest messages first: those that cannot fit any more are not tokenised, and no message is twice. */
static is_status measure(completing *c)
{
    const uint32_t room = is_asking_room(&c->a);
    uint32_t left = room;

    if (!c->said) c->said = is_calloc(2 * c->h.n_turns + 1, sizeof *c->said);
    if (!c->said) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the conversation");
    is_status st = take_room(c, 2 * c->h.n_turns, &left);
    if (c->talk) c->n_over = 0; /* the engine holds what is older */
    for (size_t i = c->h.n_turns; st == INFERSCALE_OK && !c->talk && i-- > c->n_over;) {
        st = take_room(c, 2 * i + 1, &left);
        if (st == INFERSCALE_OK) st = take_room(c, 2 * i, &left);
        if (st != INFERSCALE_E_CONTEXT || !c->a.c.on_full) continue;
        c->n_over = i + 1;
        st = INFERSCALE_OK;
    }
    return st == INFERSCALE_E_CONTEXT ? too_long(c, "more than ", room, room) : st;
}

static is_status copy_tokens(const is_tokens *from, is_tokens *to)
{
    to->ids = is_malloc((from->n + 1) * sizeof *to->ids);
    if (!to->ids) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the conversation");
    if (from->n) memcpy(to->ids, from->ids, from->n * sizeof *to->ids);
    to->n = from->n;
    return INFERSCALE_OK;
}

static is_status load_turns(completing *c)
{
    IS_TRY(measure(c));
    if (c->n_dropped < c->n_over) c->n_dropped = c->n_over;
    const size_t first = c->n_dropped;

    c->a.answer->n_placed_kept = c->a.answer->n_placed_lost = 0;
    c->turns = is_calloc(c->h.n_turns - first + 1, sizeof *c->turns);
    if (!c->turns) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the conversation");
    for (size_t i = first; i < c->h.n_turns; i++) {
        is_plan_turn *turn = &c->turns[c->n_turns++];

        IS_TRY(copy_tokens(&c->said[2 * i], &turn->user));
        IS_TRY(copy_tokens(&c->said[2 * i + 1], &turn->assistant));
        IS_TRY(load_memory(c, i, turn));
    }
    return INFERSCALE_OK;
}

static void shape(completing *c)
{
    is_plan_opts *o = &c->a.shape;

    *o = (is_plan_opts){ .front = !in_turns(c), .with_memory = c->a.o.mode != INFERSCALE_MODE_NONE };
    if (c->header.n) o->header = &c->header, o->header_plain = &c->header_plain;
    if (c->talk) o->resident = c->talk->parts, o->n_resident = c->talk->n_parts;
    else o->turns = c->turns, o->n_turns = c->n_turns;
}

static void drop_oldest(completing *c)
{
    is_plan_turn *t = &c->turns[0];

    if (c->a.o.mode != INFERSCALE_MODE_NONE && in_turns(c) && c->a.has_partition) {
        c->a.answer->n_placed_kept -= t->with_memory;
        c->a.answer->n_placed_lost -= !t->with_memory;
    }
    is_plan_turn_free(t);
    c->n_turns--;
    memmove(c->turns, c->turns + 1, c->n_turns * sizeof *c->turns);
    c->n_dropped++;
}

/* Leaves out oldest turns until the rest fits, if that is allowed. */
static is_status make_room(completing *c)
{
    const uint32_t room = is_asking_room(&c->a);
    is_status st = c->talk ? measure(c) : INFERSCALE_OK; /* else the turns were */
    const is_tokens *question = c->said ? &c->said[2 * c->h.n_turns] : NULL;

    while (st == INFERSCALE_OK) {
        uint64_t need;

        shape(c);
        need = is_plan_fixed(is_handle_profile(c->a.is), question, &c->a.shape);
        st = need <= room ? INFERSCALE_OK : too_long(c, "", need, room);
        if (st == INFERSCALE_OK || !c->a.c.on_full || (!c->talk && c->n_turns == 0)) break;
        if (c->talk) {
            is_talk_end(c->a.is, c->talk);
            c->talk = NULL;
            c->a.resident = (is_made_of){ 0 };
            st = load_turns(c);
        } else {
            drop_oldest(c);
            st = INFERSCALE_OK;
        }
    }
    return st;
}

/* What the earlier turns hold is not placed again. */
static is_status skip_placed(completing *c)
{
    const is_plan_opts *o = &c->a.shape;
    size_t n = o->n_resident;

    for (size_t i = 0; i < o->n_turns; i++) n += o->turns[i].n_facts;
    c->skip = is_calloc(n + 1, sizeof *c->skip);
    if (!c->skip) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    n = 0;
    for (uint32_t i = 0; i < o->n_resident; i++)
        if (o->resident[i].role == IS_ROLE_FACT) c->skip[n++] = (is_dep){ o->resident[i].fact_id, o->resident[i].version };
    for (size_t i = 0; i < o->n_turns; i++)
        for (size_t k = 0; k < o->turns[i].n_facts; k++) c->skip[n++] = (is_dep){ o->turns[i].facts[k].id, o->turns[i].facts[k].version };
    c->a.skip = c->skip;
    c->a.n_skip = n;
    return INFERSCALE_OK;
}

static is_status stand(completing *c)
{
    inferscale_answer *ans = c->a.answer;

    c->n_dropped = 0;
    ans->n_placed_kept = ans->n_placed_new = ans->n_placed_lost = 0;
    IS_TRY(is_asking_lease(&c->a));
    IS_TRY(is_history_keys(&c->h, &c->a));
    IS_TRY(find_talk(c));
    if (c->talk) {
        c->a.resident = c->talk->rows;
        ans->n_placed_kept = c->talk->n_placed;
        ans->n_placed_lost = c->talk->n_lost;
    } else IS_TRY(load_turns(c));
    IS_TRY(make_room(c));
    if (!c->talk && ans->n_placed_lost)
        is_asking_note(&c->a, INFERSCALE_FALLBACK_CHANGED_EARLIER,
                       "which memory stood before %zu earlier turns is not known, or some of it was forgotten or changed: they were "
                       "computed without it", ans->n_placed_lost);
    ans->n_turns_dropped = c->n_dropped;
    if (c->n_dropped)
        is_asking_note(&c->a, INFERSCALE_FALLBACK_TURNS_DROPPED, "the %zu oldest turns were left out: the context is full", c->n_dropped);
    ans->n_placed_new = ans->header[0] != 'n' && in_turns(c);
    return skip_placed(c);
}

/* ---- Answering ----------------------------------------------------------------------------------------------------------- */

/* What a talk had still to run is run, then its run is this one's. */
static is_status go_on(completing *c)
{
    int32_t pending;

    if (!c->talk) return INFERSCALE_OK;
    pending = c->talk->pending;
    c->run = c->talk->run;
    c->talk->run = NULL;
    return pending >= 0 ? is_asking_feed(&c->a, c->run, pending) : INFERSCALE_OK;
}

/* The order in which the newest turn's facts stand is kept for those who send the conversation again. */
static void keep_placement(completing *c, const is_planned *planned)
{
    const is_plan *plan = is_planned_plan(planned);
    is_dep *deps, *known = NULL;
    size_t n = 0, n_known = 0;
    is_status st;

    if (!c->a.answer->n_placed_new || !c->a.has_partition || c->a.hold.as_of) return;
    deps = is_calloc(plan->n_parts + 1u, sizeof *deps);
    for (size_t i = is_planned_newest(planned); deps && i < plan->n_parts; i++)
        if (plan->parts[i].role == IS_ROLE_FACT) deps[n++] = (is_dep){ plan->parts[i].fact_id, plan->parts[i].version };
    st = deps ? find_placement(c, c->h.asked[c->h.n_turns], &known, &n_known)
              : is_fail(INFERSCALE_E_NOMEM, "out of memory");
    if (st == INFERSCALE_OK) {
        bool same = n == n_known;

        for (size_t i = 0; same && i < n; i++) same = deps[i].item_id == known[i].item_id && deps[i].version == known[i].version;
        st = same ? INFERSCALE_OK : INFERSCALE_E_NOTFOUND;
    }
    if (st == INFERSCALE_E_NOTFOUND)
        st = c->a.is->read_only ? is_fail(INFERSCALE_E_READONLY, "the store is open for reading only")
                                : is_bank_put_placement(c->a.is->bank, &c->a.p, is_handle_profile(c->a.is)->fingerprint,
                                                      c->h.asked[c->h.n_turns], deps, n);
    /* What changed meanwhile is no placement any more, and the next turn will say so. */
    if (st != INFERSCALE_OK && st != INFERSCALE_E_STALE)
        is_asking_note(&c->a, INFERSCALE_FALLBACK_PLACEMENT_NOT_KEPT, "which memory stands before this turn could"
                       " not be kept (%s): without the engine's cache the turn is computed without it", is_error());
    is_free(known);
    is_free(deps);
}

/* The run stays for a while, if the conversation can go on from where it ended. */
static void keep_talk(completing *c, const is_planned *planned, int32_t pending)
{
    const inferscale_answer *ans = c->a.answer;
    const size_t n_told = c->a.told.len / sizeof(int32_t);
    is_talk *t = NULL;
    is_key told;

    if (!c->run || !in_turns(c) || !c->a.exactly || n_told == 0 || is_utf8_blank(ans->text, strlen(ans->text))) return;
    if (is_hold_stopped(&c->a.hold)) return;
    if (is_talk_new(is_planned_plan(planned), (const int32_t *)(const void *)c->a.told.data, n_told, &c->a.hold, &t) != INFERSCALE_OK ||
        is_history_told(&c->h, &c->a, ans->text, told) != INFERSCALE_OK ||
        is_history_talk(&c->a, told, c->n_dropped, t->key) != INFERSCALE_OK) {
        is_log(IS_LOG_WARN, "a conversation is not kept in the engine: %s", is_error());
        is_talk_end(c->a.is, t);
        return;
    }
    t->run = c->run;
    c->run = NULL;
    t->pending = pending;
    t->rows = c->a.used;
    c->a.used = (is_made_of){ 0 };
    t->n_placed = ans->n_placed_kept + ans->n_placed_new;
    t->n_lost = ans->n_placed_lost;
    is_talks_keep(c->a.is, t, &c->a.hold);
}

static is_status plan(completing *c, const char *prompt, is_planned **out)
{
    const is_realm *whose;
    is_tokens text = { 0 };

    if (!prompt) {
        IS_TRY(stand(c));
        return is_asking_plan(&c->a, out);
    }
    IS_TRY(is_asking_realm(&c->a, &whose));
    const is_fit fit = { is_asking_room(&c->a), c->a.o.cancel };
    IS_TRY(is_profile_raw(c->a.is->engine, whose, prompt, &fit, &text));
    if (text.n <= fit.room) return is_plan_raw(&text, fit.room, out);
    const uint32_t n = text.n;
    is_tokens_free(&text);
    return is_fail(INFERSCALE_E_CONTEXT, "this model's maximum context length is %u tokens, which leaves %u beside an answer of %u, but the "
                   "prompt has %u; shorten it, ask for fewer answer tokens, or open the model with a larger context",
                   is_engine_describe(c->a.is->engine)->n_ctx, fit.room, c->a.o.max_tokens, n);
}

static is_status try_once(completing *c, const char *prompt)
{
    is_planned *planned = NULL;
    int32_t pending = -1;
    bool fresh = true;
    is_status st;

    is_asking_again(&c->a);
    st = plan(c, prompt, &planned);
    if (st == INFERSCALE_OK) st = is_asking_fresh(&c->a, planned, &fresh);
    if (st == INFERSCALE_OK && !fresh) st = is_asking_gone();
    if (st == INFERSCALE_OK) st = go_on(c);
    if (st == INFERSCALE_OK) st = is_asking_run(&c->a, planned, &c->run);
    if (st == INFERSCALE_OK) st = is_asking_generate(&c->a, c->run, &pending);
    if (st == INFERSCALE_OK && !is_hold_stopped(&c->a.hold))
        is_handle_answered(&c->a, is_planned_plan(planned), (const int32_t *)(const void *)c->a.told.data, c->a.told.len / sizeof(int32_t));
    if (st == INFERSCALE_OK && !prompt) {
        keep_placement(c, planned);
        keep_talk(c, planned, pending);
    }
    if (st == INFERSCALE_E_CANCELLED && !prompt && c->a.answer->tokens_answer > 0) { /* what was heard of it may be sent again */
        keep_placement(c, planned);
        st = is_fail(INFERSCALE_E_CANCELLED, "the answer was cancelled");
    }
    is_planned_free(planned);
    if (st != INFERSCALE_OK && st != INFERSCALE_E_STALE && c->talk && c->talk->run) { /* refused before it was touched */
        is_talks_keep(c->a.is, c->talk, &c->a.hold);
        c->talk = NULL;
    }
    let_go(c);
    return st;
}

static is_status complete(completing *c, const inferscale_complete_options *o, const char *prompt)
{
    is_status st = INFERSCALE_E_STALE;

    IS_TRY(is_handle_engine(c->a.is));
    IS_TRY(take_options(c, o));
    IS_TRY(read_header(c));
    c->a.answer->header = header_name(c);
    if (!prompt) IS_TRY(is_asking_embed(&c->a)); /* a resting conversation's place is taken later */
    for (int i = 0; i < TRIES && st == INFERSCALE_E_STALE; i++) st = try_once(c, prompt);
    if (st == INFERSCALE_E_STALE)
        st = is_fail(INFERSCALE_E_STALE, "the memory changed %d times while the answer was planned; ask again", TRIES);
    return st;
}

is_status inferscale_complete(inferscale *is, const inferscale_scope *scope, const inferscale_message *messages, size_t n_messages,
                              const inferscale_complete_options *options, inferscale_answer **out)
{
    const inferscale_complete_options none = INFERSCALE_COMPLETE_OPTIONS_INIT, *o = options ? options : &none;
    const char *prompt = NULL;
    completing c;
    is_status st;

    if (!out) return is_fail(INFERSCALE_E_INVALID, "there is no place for the answer; pass its address");
    *out = NULL;
    memset(&c, 0, sizeof c);
    IS_TRY(is_handle_check(is));
    IS_TRY(check_options(o));
    if (n_messages == 0) prompt = o->prompt;
    st = prompt ? INFERSCALE_OK : is_history_read(messages, n_messages, &c.h);
    if (st == INFERSCALE_OK) st = is_asking_begin(&c.a, is, prompt ? NULL : scope, prompt ? prompt : c.h.question, &o->ask);
    if (st == INFERSCALE_OK) st = complete(&c, o, prompt);
    if (st == INFERSCALE_OK) st = is_asking_finish(&c.a, out);
    is_asking_free(&c.a);
    for (size_t i = 0; c.said && i < 2 * c.h.n_turns + 1; i++) is_tokens_free(&c.said[i]);
    is_free(c.said);
    is_history_free(&c.h);
    is_tokens_free(&c.header);
    is_tokens_free(&c.header_plain);
    return st;
}
