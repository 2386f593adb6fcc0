/* plan.c - the one composer: which parts, in which order, provided by whom. Its text twin is the same list, all computed. */
#include "plan/plan.h"

#include <string.h>

#include "base/mem.h"

struct is_planned {
    is_plan plan, twin;
    uint32_t pos0;
    bool begins;             /* with the profile's header */
    is_tokens *owned;        /* [n_owned] tokens of facts and turns */
    size_t n_owned;
    is_segment **segments;   /* [n_owned]; NULL where computed */
    size_t n_dropped, newest;
};

void is_plan_turn_free(is_plan_turn *turn)
{
    for (size_t i = 0; turn->facts && i < turn->n_facts; i++) {
        is_tokens_free(&turn->facts[i].tokens);
        is_segment_unref(turn->facts[i].segment);
    }
    is_free(turn->facts);
    is_tokens_free(&turn->user);
    is_tokens_free(&turn->assistant);
    memset(turn, 0, sizeof *turn);
}

static void free_facts(is_plan_fact *facts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        is_tokens_free(&facts[i].tokens);
        is_segment_unref(facts[i].segment);
        facts[i].segment = NULL;
    }
}

/* Which facts fit, best first: a fact too large for what is left is skipped, so that one giant does not push out all others. */
static size_t choose(const is_plan_fact *facts, size_t n, uint32_t room, bool *keep)
{
    size_t kept = 0;

    for (size_t i = 0; i < n; i++) {
        keep[i] = facts[i].tokens.n <= room;
        if (!keep[i]) continue;
        room -= facts[i].tokens.n;
        kept++;
    }
    return kept;
}

static void add_part(is_planned *p, is_role role, const is_tokens *t)
{
    is_plan *plan = &p->plan;

    if (!t->n) return;
    plan->parts[plan->n_parts++] = (is_part){ .role = role, .source = IS_SRC_COMPUTED, .tokens = t->ids, .n_tokens = t->n,
                                              .pos = p->pos0 + plan->n_tokens };
    plan->n_tokens += t->n;
}

static void add_fact(is_planned *p, is_plan_fact *f, bool stored)
{
    is_part *part = &p->plan.parts[p->plan.n_parts++];

    p->owned[p->n_owned] = f->tokens;
    p->segments[p->n_owned] = f->segment;
    p->n_owned++;
    *part = (is_part){ .role = IS_ROLE_FACT, .source = stored ? IS_SRC_STORED : IS_SRC_COMPUTED, .tokens = f->tokens.ids,
                       .n_tokens = f->tokens.n, .pos = p->pos0 + p->plan.n_tokens, .fact_id = f->id, .version = f->version,
                       .segment = stored ? f->segment : NULL };
    p->plan.n_tokens += f->tokens.n;
    f->tokens = (is_tokens){ 0 };
    f->segment = NULL;
}

static bool is_stored(const is_plan_fact *facts, size_t rank, uint32_t repair)
{
    return facts[rank].segment != NULL && rank >= repair;
}

/* The worst fact that is exact right behind the header; not the best of its group, whose place is the last. n = there is none. Where
 * nothing is stored (all is computed as text) the order is the one that it would have with everything stored. */
static size_t choose_first(const is_plan_fact *facts, const bool *keep, size_t n, uint32_t repair)
{
    bool any_stored = false;

    for (size_t rank = 0; rank < n; rank++) any_stored = any_stored || (keep[rank] && is_stored(facts, rank, repair));
    for (size_t rank = n; rank-- > (size_t)repair + 1;)
        if (keep[rank] && facts[rank].exact_first && facts[rank].tokens.n && is_stored(facts, rank, repair) == any_stored) return rank;
    return n;
}

/* Stored facts first, computed ones after them. facts[] is best first: each group is walked backwards, so that its best fact stands
 * last, or forwards with best_first. */
static void add_facts(is_planned *p, is_plan_fact *facts, const bool *keep, size_t n, const is_plan_opts *opts)
{
    const bool begins = p->begins && p->plan.n_parts == 1 && !opts->best_first;
    const uint32_t repair = opts->repair;
    const size_t first = begins ? choose_first(facts, keep, n, repair) : n;

    if (first < n) add_fact(p, &facts[first], is_stored(facts, first, repair));
    for (int group = 0; group < 2; group++) {
        for (size_t i = 0; i < n; i++) {
            size_t rank = opts->best_first ? i : n - 1 - i;
            bool stored = is_stored(facts, rank, repair);

            if (rank != first && keep[rank] && facts[rank].tokens.n && stored == (group == 0)) add_fact(p, &facts[rank], stored);
        }
    }
}

static is_status make_room(is_planned *p, size_t n_facts, const is_plan_opts *opts)
{
    size_t n_owned = n_facts + 2, n_parts = n_facts + opts->n_resident + 6;

    for (size_t i = 0; i < opts->n_turns; i++) {
        n_owned += opts->turns[i].n_facts + 2;
        n_parts += opts->turns[i].n_facts + 5;
    }
    p->plan.parts = is_calloc(n_parts, sizeof *p->plan.parts);
    p->twin.parts = is_calloc(n_parts, sizeof *p->twin.parts);
    p->owned = is_calloc(n_owned, sizeof *p->owned);
    p->segments = is_calloc(n_owned, sizeof *p->segments);
    if (p->plan.parts && p->twin.parts && p->owned && p->segments) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_NOMEM, "out of memory while planning %zu facts", n_facts);
}

/* ---- Laying out ---------------------------------------------------------------------------------------------------------- */

static void add_own(is_planned *p, is_role role, is_tokens *t)
{
    add_part(p, role, t);
    p->owned[p->n_owned++] = *t;
    *t = (is_tokens){ 0 };
}

/* What stands before a turn's memory: the system text, or the end of the turn before. */
static const is_tokens *opener(const is_profile *profile, const is_plan_opts *opts, bool first, bool memory)
{
    if (!first) return memory ? &profile->next_header : &profile->next_plain;
    if (memory) return opts->header ? opts->header : &profile->header;
    return opts->header_plain ? opts->header_plain : &profile->header_plain;
}

/* The profile's own words are everybody's; another system text is its client's. */
static void add_opener(is_planned *p, const is_profile *profile, const is_tokens *t)
{
    add_part(p, IS_ROLE_HEADER, t);
    if (t->n) p->plan.parts[p->plan.n_parts - 1].common = t == &profile->header || t == &profile->header_plain;
}

static const is_tokens *closer(const is_profile *profile, bool first)
{
    return first ? &profile->footer : &profile->next_footer;
}

static uint64_t block_tokens(const is_profile *profile, const is_plan_opts *opts, bool first, bool memory)
{
    return (uint64_t)opener(profile, opts, first, memory)->n + (memory ? closer(profile, first)->n : 0);
}

/* Does the newest turn (or with front, the first) begin the prompt? */
static bool newest_begins(const is_plan_opts *opts)
{
    return !opts->next_turn && opts->n_turns == 0 && opts->n_resident == 0;
}

uint64_t is_plan_fixed(const is_profile *profile, const is_tokens *question, const is_plan_opts *opts)
{
    uint64_t n = (uint64_t)question->n + profile->tail.n;

    for (uint32_t i = 0; i < opts->n_resident; i++) n += opts->resident[i].n_tokens;
    for (size_t i = 0; i < opts->n_turns; i++) {
        const is_plan_turn *t = &opts->turns[i];

        n += block_tokens(profile, opts, i == 0, opts->front ? opts->with_memory && i == 0 : t->with_memory);
        for (size_t k = 0; k < t->n_facts; k++) n += t->facts[k].tokens.n;
        n += (uint64_t)t->user.n + profile->tail.n + t->assistant.n;
    }
    return n + block_tokens(profile, opts, newest_begins(opts), opts->with_memory && !(opts->front && !newest_begins(opts)));
}

static void add_said(is_planned *p, const is_profile *profile, is_plan_turn *t)
{
    add_own(p, IS_ROLE_TURN, &t->user);
    add_part(p, IS_ROLE_FOOTER, &profile->tail);
    add_own(p, IS_ROLE_TURN, &t->assistant);
}

/* An earlier turn where it stood, with the memory that it had. */
static void add_turn(is_planned *p, const is_profile *profile, const is_plan_opts *opts, size_t i)
{
    is_plan_turn *t = &opts->turns[i];

    add_opener(p, profile, opener(profile, opts, i == 0, t->with_memory));
    for (size_t k = 0; k < t->n_facts; k++)
        if (t->facts[k].tokens.n) add_fact(p, &t->facts[k], t->facts[k].segment != NULL);
    if (t->with_memory) add_part(p, IS_ROLE_FOOTER, closer(profile, i == 0));
    add_said(p, profile, t);
}

static void add_resident(is_planned *p, const is_plan_opts *opts)
{
    for (uint32_t i = 0; i < opts->n_resident; i++) {
        is_part *part = &p->plan.parts[p->plan.n_parts++];

        *part = opts->resident[i];
        part->source = IS_SRC_RESIDENT;
        part->segment = NULL;
        part->pos = p->pos0 + p->plan.n_tokens;
        p->plan.n_tokens += part->n_tokens;
    }
}

static void add_memory(is_planned *p, const is_profile *profile, is_plan_fact *facts, const bool *keep, size_t n, const is_plan_opts *opts,
                       bool first)
{
    add_opener(p, profile, opener(profile, opts, first, opts->with_memory));
    if (!opts->with_memory) return;
    add_facts(p, facts, keep, n, opts);
    add_part(p, IS_ROLE_FOOTER, closer(profile, first));
}

/* All that was said, behind all memory. */
static void add_front(is_planned *p, const is_profile *profile, is_plan_fact *facts, const bool *keep, size_t n, const is_plan_opts *opts)
{
    add_memory(p, profile, facts, keep, n, opts, true);
    for (size_t i = 0; i < opts->n_turns; i++) {
        if (i) add_part(p, IS_ROLE_HEADER, &profile->next_plain);
        add_said(p, profile, &opts->turns[i]);
    }
    p->newest = p->plan.n_parts;
    if (opts->n_turns) add_part(p, IS_ROLE_HEADER, &profile->next_plain);
    else p->newest = 0;
}

/* The whole plan into p; keep[] is room for n flags. */
static is_status lay_out(const is_profile *profile, is_plan_fact *facts, size_t n, is_tokens *question, const is_plan_opts *opts,
                         bool *keep, is_planned *p)
{
    const uint64_t fixed = is_plan_fixed(profile, question, opts);
    const bool memory = opts->with_memory, first_memory = opts->n_turns && !opts->front ? opts->turns[0].with_memory : memory;
    size_t kept;

    p->pos0 = opts->pos0;
    p->begins = first_memory && !opts->header && !opts->next_turn && !opts->n_resident && opts->pos0 == 0 && profile->header.n > 0;
    if (fixed > opts->n_ctx_left)
        return is_fail(INFERSCALE_E_CONTEXT, "this model's maximum context length is %u tokens, which leaves %u beside the answer, but the "
                       "question and its frame need %llu; shorten the question, ask for fewer answer tokens, or open the model with a larger "
                       "context", opts->n_ctx, opts->n_ctx_left, (unsigned long long)fixed);
    kept = memory ? choose(facts, n, opts->n_ctx_left - (uint32_t)fixed, keep) : 0;
    p->n_dropped = memory ? n - kept : 0;
    if (opts->front) {
        add_front(p, profile, facts, keep, n, opts);
    } else {
        add_resident(p, opts);
        for (size_t i = 0; i < opts->n_turns; i++) add_turn(p, profile, opts, i);
        p->newest = p->plan.n_parts;
        add_memory(p, profile, facts, keep, n, opts, newest_begins(opts));
    }
    add_own(p, IS_ROLE_QUESTION, question);
    add_part(p, IS_ROLE_FOOTER, &profile->tail);
    return INFERSCALE_OK;
}

static is_status copy_tokens(const is_tokens *from, is_tokens *to)
{
    to->ids = is_malloc((from->n ? from->n : 1) * sizeof(int32_t));
    if (!to->ids) return is_fail(INFERSCALE_E_NOMEM, "out of memory while planning");
    if (from->n) memcpy(to->ids, from->ids, from->n * sizeof(int32_t));
    to->n = from->n;
    return INFERSCALE_OK;
}

is_status is_plan_new(const is_profile *profile, is_plan_fact *facts, size_t n, const is_tokens *question, const is_plan_opts *opts,
                      is_planned **out)
{
    is_planned *p = is_calloc(1, sizeof *p);
    bool *keep = is_calloc(n + 1, sizeof *keep);
    is_tokens words = { 0 };
    is_status st = INFERSCALE_OK;

    *out = NULL;
    if (!p || !keep) st = is_fail(INFERSCALE_E_NOMEM, "out of memory while planning %zu facts", n);
    if (st == INFERSCALE_OK) st = make_room(p, n, opts);
    if (st == INFERSCALE_OK) st = copy_tokens(question, &words);
    if (st == INFERSCALE_OK) st = lay_out(profile, facts, n, &words, opts, keep, p);
    is_tokens_free(&words);
    is_free(keep);
    free_facts(facts, n);
    if (st != INFERSCALE_OK) {
        is_planned_free(p);
        return st;
    }
    *out = p;
    return INFERSCALE_OK;
}

is_status is_plan_raw(is_tokens *text, uint32_t n_ctx_left, is_planned **out)
{
    static const is_plan_opts none;
    is_planned *p = is_calloc(1, sizeof *p);
    is_status st = p ? make_room(p, 0, &none) : is_fail(INFERSCALE_E_NOMEM, "out of memory while planning");

    *out = NULL;
    if (st == INFERSCALE_OK && text->n > n_ctx_left)
        st = is_fail(INFERSCALE_E_CONTEXT, "the prompt has %u tokens and the context has room for %u; shorten it, ask for fewer answer "
                     "tokens, or open the model with a larger context", text->n, n_ctx_left);
    if (st == INFERSCALE_OK) add_own(p, IS_ROLE_QUESTION, text);
    if (st == INFERSCALE_OK) *out = p;
    else is_planned_free(p);
    is_tokens_free(text);
    return st;
}

bool is_plan_is_crowd(size_t n_facts, uint32_t company)
{
    enum { CROWD = 3 };

    return n_facts > (size_t)CROWD * company;
}

void is_planned_free(is_planned *p)
{
    if (!p) return;
    for (size_t i = 0; i < p->n_owned; i++) {
        is_tokens_free(&p->owned[i]);
        is_segment_unref(p->segments[i]);
    }
    is_free(p->owned);
    is_free(p->segments);
    is_free(p->plan.parts);
    is_free(p->twin.parts);
    is_free(p);
}

const is_plan *is_planned_plan(const is_planned *p)
{
    return &p->plan;
}

size_t is_planned_dropped(const is_planned *p)
{
    return p->n_dropped;
}

size_t is_planned_newest(const is_planned *p)
{
    return p->newest;
}

size_t is_planned_first(const is_planned *p)
{
    const is_part *part = &p->plan.parts[1];

    if (!p->begins || p->plan.n_parts < 2 || part->role != IS_ROLE_FACT || part->source != IS_SRC_STORED) return p->plan.n_parts;
    return 1;
}

bool is_planned_same(const is_planned *p, size_t part, const is_segment *segment)
{
    const is_part *at = &p->plan.parts[part];
    const is_segment_desc *d = is_segment_info(segment);

    return part < p->plan.n_parts && at->source == IS_SRC_STORED && d->n_tokens == at->n_tokens &&
           memcmp(d->tokens, at->tokens, at->n_tokens * sizeof(int32_t)) == 0;
}

is_status is_planned_replace(is_planned *p, size_t part, is_segment *segment)
{
    is_part *at = &p->plan.parts[part];

    if (!is_planned_same(p, part, segment))
        return is_fail(INFERSCALE_E_INVALID, "these rows are not of the plan's part %zu; encode the fact again", part);
    for (size_t i = 0; i < p->n_owned; i++) {
        if (p->segments[i] != at->segment || p->owned[i].ids != at->tokens) continue;
        is_segment_unref(p->segments[i]);
        p->segments[i] = at->segment = is_segment_ref(segment);
        return INFERSCALE_OK;
    }
    return is_fail(INFERSCALE_E_INTERNAL, "a plan does not own its part %zu", part);
}

const is_plan *is_planned_twin(is_planned *p)
{
    p->twin.n_parts = p->plan.n_parts;
    p->twin.n_tokens = p->plan.n_tokens;
    for (uint32_t i = 0; i < p->plan.n_parts; i++) {
        p->twin.parts[i] = p->plan.parts[i];
        if (p->twin.parts[i].source == IS_SRC_STORED) p->twin.parts[i].source = IS_SRC_COMPUTED;
        p->twin.parts[i].segment = NULL;
    }
    return &p->twin;
}
