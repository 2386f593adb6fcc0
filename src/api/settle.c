/* settle.c - what an engine that computes elsewhere says of an answer when it is over: rows that it did not use after all, so that the answer
 * claims no more than is true, and segments that it could not use, so that they are mended. */
#include "api/answer.h"
#include "api/damage.h"

#include <string.h>

/* A fact of which it was said that its rows were used. False: it was not. */
static bool take_back(is_asking *a, const is_part *part)
{
    inferscale_answer *ans = a->answer;
    const is_variant *v = is_asking_variant(a, part->fact_id);

    for (size_t i = 0; i < ans->n_facts; i++) {
        inferscale_used *f = &ans->facts[i];

        if (f->id != part->fact_id || f->version != part->version || f->source != INFERSCALE_SOURCE_STORED) continue;
        f->source = INFERSCALE_SOURCE_COMPUTED;
        f->policy[0] = 0;
        if (v) ans->n_refined -= v->refined, ans->n_exact -= v->exact;
        return true;
    }
    return false;
}

/* Of what the servers could not use, what is damaged here too. */
static void hear_of_bad(is_asking *a, const is_run_stats *s)
{
    is_unusable n = { 0 };

    for (uint32_t b = 0; b < s->n_bad; b++)
        for (uint32_t i = 0; i < a->ran->n_parts; i++) {
            const is_part *part = &a->ran->parts[i];

            if (part->source != IS_SRC_STORED || memcmp(is_segment_info(part->segment)->name, s->bad[b].name, IS_HASH_BYTES) != 0) continue;
            is_damage_told(a->is, &a->p, part, s->bad[b].reason, &n);
        }
    is_asking_note_damaged(a, &n);
}

/* Such an engine computes nothing of the first so many tokens, and all of the others. */
void is_asking_settle(is_asking *a, is_run *run)
{
    inferscale_answer *ans = a->answer;
    size_t n_stored = 0, n_lost = 0;
    is_run_stats s;
    uint32_t kept;

    if (!is_engine_describe(a->is->engine)->remote || !a->ran) return;
    is_engine_stats(a->is->engine, run, &s);
    is_asking_counts(a, &s);
    hear_of_bad(a, &s);
    if (!s.why[0]) return;
    kept = s.tokens_resident + s.tokens_injected;
    for (uint32_t i = 0; i < a->ran->n_parts; i++) {
        const is_part *part = &a->ran->parts[i];

        if (part->role != IS_ROLE_FACT || part->source != IS_SRC_STORED) continue;
        n_stored++;
        if (part->pos + part->n_tokens > kept) n_lost += take_back(a, part);
    }
    is_asking_note(a, INFERSCALE_FALLBACK_COMPUTED_AFTER_ALL,
                   "%zu of %zu stored facts were computed after all by the engine (%s: %s)", n_lost, n_stored, s.reason, s.why);
    if (n_lost == n_stored && ans->mode == INFERSCALE_MODE_KV) ans->mode = INFERSCALE_MODE_TEXT;
}
