/* report.c - what the engine says of itself and of its servers. */
#include <stdio.h>
#include <string.h>

#include "engine/vllm/internal.h"

is_status vllm_info(void *impl, is_engine_info *out)
{
    const vllm *e = impl;
    const vllm_model *m = e->model;

    memset(out, 0, sizeof *out);
    snprintf(out->engine, sizeof out->engine, "vllm %.20s, connector %.20s", m->vllm, m->connector);
    snprintf(out->name, sizeof out->name, "%.127s", m->name);
    snprintf(out->arch, sizeof out->arch, "%.31s", m->arch);
    snprintf(out->weights, sizeof out->weights, "%.31s", m->dtype);
    memcpy(out->fingerprint, m->fingerprint, IS_HASH_BYTES);
    out->can_inject = m->can_inject;
    if (!m->can_inject) snprintf(out->why_not, sizeof out->why_not, "%s", m->why_not);
    out->has_chat_template = e->has_chat;
    out->n_params = m->n_params;
    out->n_layers = m->n_layers;
    out->n_ctx = out->n_ctx_train = m->n_ctx;
    out->n_vocab = m->n_vocab;
    out->n_capture_spans = m->can_inject ? VLLM_CAPTURES : 0;
    out->unrotated = out->remote = true;
    out->exact_codec = m->codec;
    out->default_codec = IS_CODEC_INT8;
    return INFERSCALE_OK;
}

const is_geometry *vllm_geometry(void *impl)
{
    const vllm *e = impl;

    return e->model->can_inject ? e->model->geometry : NULL;
}

const is_chat_format *vllm_chat(void *impl)
{
    return &((vllm *)impl)->chat;
}

/* ---- Servers ------------------------------------------------------------------------------------------------------------------------------ */

void vllm_upstream_retried(vllm *e, uint32_t i)
{
    pthread_mutex_lock(&e->lock);
    e->up[i].n_retries++;
    pthread_mutex_unlock(&e->lock);
}

/* Under the lock. */
static void count_reason(vllm_upstream *u, const char *code)
{
    uint32_t k = 0;

    while (k < u->n_reasons && strcmp(u->reasons[k].code, code) != 0) k++;
    if (k == IS_REASONS_MAX) return;
    if (k == u->n_reasons) {
        snprintf(u->reasons[k].code, sizeof u->reasons[k].code, "%.23s", code);
        u->n_reasons++;
    }
    u->reasons[k].n++;
}

void vllm_upstream_injected(vllm *e, uint32_t i, uint64_t tokens, const char *reason)
{
    pthread_mutex_lock(&e->lock);
    e->up[i].tokens_injected += tokens;
    if (*reason) count_reason(&e->up[i], reason);
    pthread_mutex_unlock(&e->lock);
}

static void describe(const vllm *e, const vllm_upstream *u, is_upstream *out)
{
    memset(out, 0, sizeof *out);
    snprintf(out->url, sizeof out->url, "%.255s", u->url);
    snprintf(out->version, sizeof out->version, "%s", u->version);
    snprintf(out->model, sizeof out->model, "%s", u->name);
    memcpy(out->fingerprint, u->fingerprint, sizeof out->fingerprint);
    out->up = u->state == VLLM_READY && u->n_row == 0;
    out->can_inject = out->up && u->can_inject;
    if (!out->up) snprintf(out->why, sizeof out->why, "%s", u->why[0] ? u->why : "it has not said yet what it is");
    else if (!u->can_inject) snprintf(out->why, sizeof out->why, "%s", e->model->why_not);
    out->in_flight = u->in_flight;
    out->n_pending = u->n_pending;
    out->n_requests = u->n_requests;
    out->n_retries = u->n_retries;
    out->tokens_injected = u->tokens_injected;
    out->n_reasons = u->n_reasons;
    for (uint32_t k = 0; k < u->n_reasons; k++) {
        memcpy(out->reasons[k].code, u->reasons[k].code, sizeof out->reasons[k].code);
        out->reasons[k].n = u->reasons[k].n;
    }
}

/* What concerns no server alone stands with the first one's reasons. */
static void add_reason(is_upstream *out, const char *code, uint64_t n)
{
    if (!n || out->n_reasons == IS_REASONS_MAX) return;
    snprintf(out->reasons[out->n_reasons].code, sizeof out->reasons->code, "%s", code);
    out->reasons[out->n_reasons++].n = n;
}

size_t vllm_upstreams(void *impl, is_upstream *out, size_t most)
{
    vllm *e = impl;

    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < e->n_up && i < most; i++) describe(e, &e->up[i], &out[i]);
    pthread_mutex_unlock(&e->lock);
    if (most && e->n_up) {
        add_reason(&out[0], "header", __atomic_load_n(&e->n.cold_starts, __ATOMIC_RELAXED));
        add_reason(&out[0], "tail", __atomic_load_n(&e->n.tails_failed, __ATOMIC_RELAXED));
        add_reason(&out[0], "chat_format", __atomic_load_n(&e->n.chat_fallbacks, __ATOMIC_RELAXED));
        add_reason(&out[0], "special_text", __atomic_load_n(&e->n.refused_texts, __ATOMIC_RELAXED));
        add_reason(&out[0], "foreign_server", __atomic_load_n(&e->n.foreign_servers, __ATOMIC_RELAXED));
    }
    return e->n_up;
}
