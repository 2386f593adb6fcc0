/* made_of.c - which rows an answer was made from, and their digest (inferscale_answer.rows_digest). */
#include "api/answer.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

void is_made_of_free(is_made_of *rows)
{
    is_free(rows->of);
    *rows = (is_made_of){ 0 };
}

/* A fact stands once in a conversation, so its id and version find it. */
static is_used_rows resident(const is_asking *a, const is_part *part)
{
    for (size_t i = 0; i < a->resident.n; i++) {
        const is_used_rows *r = &a->resident.of[i];

        if (r->id == part->fact_id && r->version == part->version) return *r;
    }
    return (is_used_rows){ .id = part->fact_id, .version = part->version };
}

/* source: as the answer reports it in the end. The plan may still say that the fact is stored. */
static is_used_rows placed(const is_part *part, int source)
{
    is_used_rows r = { .id = part->fact_id, .version = part->version };

    if (source != INFERSCALE_SOURCE_STORED || !part->segment) return r;
    r.stored = true;
    memcpy(r.segment, is_segment_info(part->segment)->name, IS_HASH_BYTES);
    return r;
}

/* The run of a chat holds facts that are no part of the newest turn's plan. */
static bool is_in_plan(const is_plan *plan, const is_used_rows *r)
{
    for (uint32_t i = 0; i < plan->n_parts; i++) {
        const is_part *part = &plan->parts[i];

        if (part->role == IS_ROLE_FACT && part->fact_id == r->id && part->version == r->version) return true;
    }
    return false;
}

static is_status list(is_asking *a)
{
    const inferscale_answer *ans = a->answer;
    const is_plan *plan = a->ran;
    size_t n_facts = 0;

    is_made_of_free(&a->used);
    a->used.of = is_calloc(a->resident.n + plan->n_parts + 1, sizeof *a->used.of);
    if (!a->used.of) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the answer");
    for (size_t i = 0; i < a->resident.n; i++)
        if (!is_in_plan(plan, &a->resident.of[i])) a->used.of[a->used.n++] = a->resident.of[i];
    for (uint32_t i = 0; i < plan->n_parts; i++) {
        const is_part *part = &plan->parts[i];

        if (part->role != IS_ROLE_FACT) continue;
        const int source = n_facts < ans->n_facts ? ans->facts[n_facts].source : (int)part->source;

        n_facts++;
        a->used.of[a->used.n++] = part->source == IS_SRC_RESIDENT ? resident(a, part) : placed(part, source);
    }
    return INFERSCALE_OK;
}

is_status is_asking_made_of(is_asking *a)
{
    uint8_t digest[IS_HASH_BYTES];
    is_hash *h = NULL;

    a->answer->rows_digest[0] = 0;
    IS_TRY(list(a));
    if (!a->used.n) return INFERSCALE_OK;
    IS_TRY(is_hash_new(NULL, &h));
    is_hash_field(h, "inferscale rows 1", 17);
    for (size_t i = 0; i < a->used.n; i++) {
        const is_used_rows *r = &a->used.of[i];

        is_hash_u64(h, (uint64_t)r->id);
        is_hash_u64(h, (uint64_t)r->version);
        is_hash_field(h, r->segment, r->stored ? IS_HASH_BYTES : 0);
    }
    is_hash_end(h, digest);
    is_hex(digest, sizeof digest, a->answer->rows_digest);
    return INFERSCALE_OK;
}
