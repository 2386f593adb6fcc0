/* study.c - the encoding part of a fidelity run: by the product's own encoder, on the lab's store. */
#include "eval/study.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

is_status fidelity_variant_parse(const char *text, fidelity_variant *out)
{
    memset(out, 0, sizeof *out);
    out->first_exact = strncmp(text, "F1:", 3) == 0;
    IS_TRY(is_policy_parse(text + (out->first_exact ? 3 : 0), &out->policy));
    snprintf(out->name, sizeof out->name, "%s%s", out->first_exact ? "F1:" : "", out->policy.name);
    return INFERSCALE_OK;
}

static int add_kind(study *s, const is_policy *policy)
{
    for (size_t i = 0; i < s->n_kinds; i++)
        if (strcmp(s->kinds[i].policy.name, policy->name) == 0) return (int)i;
    s->kinds[s->n_kinds].policy = *policy;
    return (int)s->n_kinds++;
}

is_status study_kinds(study *s)
{
    is_policy header;
    bool wants_header = false;

    s->header = NO_POLICY;
    IS_TRY(is_policy_parse("header", &header));
    for (size_t p = 0; p < s->o->n_policies; p++) {
        s->of[p] = add_kind(s, &s->o->policies[p].policy);
        wants_header = wants_header || s->o->policies[p].first_exact || s->o->policies[p].policy.header_one_in;
    }
    if (wants_header) s->header = add_kind(s, &header);
    return INFERSCALE_OK;
}

static is_status on_facts(void *ctx, size_t n, const char *what)
{
    study *s = ctx;
    (void)what;

    s->done += n - 1;
    return study_progress(s, "encoding");
}

/* The segment of a fact under a kind of policy, from the lab's own books. */
static is_status load(study *s, const is_encoder *enc, whose system, size_t k, needed *n)
{
    const char *policy = s->kinds[k].policy.name;
    is_segment_row row;

    if (!is_find_kept(enc, &s->l->partition, policy, n->fact.id, &row))
        return is_fail(INFERSCALE_E_CONTEXT, "a fact of %u tokens could not be encoded with %s; use a larger --ctx", n->fact.tokens.n, policy);
    return is_engine_segment(s->engine, enc->vault, row.name, &n->segments[system][k]);
}

/* Encodes the conversation's facts behind one header, as the product does, and takes those that are needed. */
static is_status encode_behind(study *s, whose system, size_t k)
{
    is_encoder enc = is_handle_encoder(s->l->is);
    is_encode_job job = { .policy = &s->kinds[k].policy, .on_facts = on_facts, .ctx = s };
    int64_t *ids = NULL;
    size_t n = 0;
    is_status st;

    enc.cancel = s->o->cancel;
    enc.profile = s->profiles[system];
    enc.shuffle = s->shuffle;
    IS_TRY(is_bank_unencoded(enc.bank, &s->l->partition, enc.profile->fingerprint, job.policy->name, job.policy->header_one_in, 0, 0,
                             &ids, &n));
    st = is_encode_facts(&enc, &s->l->partition, ids, n, &job);
    is_free(ids);
    IS_TRY(st);
    s->kinds[k].stored[system] += job.tokens_stored;
    s->kinds[k].computed[system] += job.tokens_computed;
    for (size_t i = 0; i < s->n_facts; i++) IS_TRY(load(s, &enc, system, k, &s->facts[i]));
    return INFERSCALE_OK;
}

static double cost_of(const kind *k, whose system)
{
    return (double)k->computed[system] / (double)k->stored[system];
}

is_status study_encode(study *s)
{
    for (size_t k = 0; k < s->n_kinds; k++) { /* what is found by vectors needs them first */
        is_policy_kind by = s->kinds[k].policy.kind;

        if (by == IS_POLICY_NEAR || by == IS_POLICY_COMPANY || (by == IS_POLICY_PAGE && s->kinds[k].policy.order == IS_PAGE_TOPIC))
            IS_TRY(is_handle_embed(s->l->is, &s->l->partition, NULL, NULL));
    }
    IS_TRY(is_bank_partition_refresh(s->l->is->bank, &s->l->partition));
    for (size_t k = 0; k < s->n_kinds; k++)
        for (int w = OWN; w < SYSTEMS; w++)
            if (s->profiles[w]) IS_TRY(encode_behind(s, w, k));
    for (size_t a = 0; a < s->f->n_arms; a++)
        for (size_t p = 0; p < s->o->n_policies; p++) {
            const whose rows = strcmp(s->f->arms[a].name, "matching") == 0 ? CLIENT : OWN;
            const kind *own = &s->kinds[s->of[p]], *header = s->header >= 0 ? &s->kinds[s->header] : NULL;

            if (s->f->arms[a].policy != s->o->policies[p].name) continue;
            s->f->arms[a].cost = cost_of(own, rows);
            if (s->o->policies[p].first_exact && own != header) s->f->arms[a].cost += cost_of(header, rows);
        }
    return INFERSCALE_OK;
}
