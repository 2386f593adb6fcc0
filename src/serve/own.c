/* own.c - our own paths: forgetting with its proof, memory as JSON Lines in and out, the encoder, where the bytes are, what would be asked,
 * what is loaded. Those who may ask about every owner may leave the owner out where that makes sense. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "exchange/export.h"
#include "exchange/import.h"
#include "exchange/json.h"
#include "serve/extract.h"
#include "serve/keys.h"
#include "serve/memory.h"
#include "serve/metrics.h"
#include "serve/server.h"
#include "serve/upstreams.h"

enum { IDS_MAX = 10000 };

/* ---- Asking ---------------------------------------------------------------------------------------------------------------- */

static void refuse(is_request *r, const char *param, const char *why)
{
    is_reply_error(r, 400, "invalid_request_error", NULL, param, "%s", why);
}

static bool may_ask_for_all(const is_request *r)
{
    const is_key *k = is_request_key(r);

    return !k || k->admin;
}

/* false: replied. all: without any owner the whole store is meant, for those who may. */
static bool read_owner(is_request *r, json_t *body, bool all, is_owner *o)
{
    if (is_scope_read(r, body, o) != INFERSCALE_OK) return false;
    if (o->given || (all && may_ask_for_all(r))) return true;
    refuse(r, "user_id", all ? "say whose: user_id, agent_id, run_id or app_id; only an admin key may ask about everybody"
                             : "say whose: user_id, agent_id, run_id or app_id");
    return false;
}

/* A boolean of the body; false if it is not there. *ok = false: replied. */
static bool flag(is_request *r, json_t *body, const char *name, bool *ok)
{
    json_t *v = json_object_get(body, name);

    if (*ok && v && !json_is_boolean(v) && !json_is_null(v)) {
        *ok = false;
        is_reply_error(r, 400, "invalid_request_error", NULL, name, "%s must be true or false", name);
    }
    return json_is_true(v);
}

static int64_t number(is_request *r, json_t *body, const char *name, int64_t none, int64_t max, bool *ok)
{
    json_t *v = json_object_get(body, name);

    if (!v || json_is_null(v)) return none;
    if (*ok && (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > max)) {
        *ok = false;
        is_reply_error(r, 400, "invalid_request_error", NULL, name, "%s must be a whole number from 0 to %lld", name, (long long)max);
    }
    return json_integer_value(v);
}

/* The body may be left out. false: replied. */
static bool read_body(is_request *r, const char *const known[], json_t **body)
{
    size_t n = 0;

    is_request_body(r, &n);
    *body = n ? is_request_json(r) : NULL;
    if (n && !*body) return false;
    if (!*body || is_members_check(*body, "the request", known) == INFERSCALE_OK) return true;
    is_reply_failed(r, INFERSCALE_E_INVALID, NULL);
    return false;
}

/* ---- Forget ---------------------------------------------------------------------------------------------------------------- */

static const char *const known_forget[] = { "ids", "all", "expired", "with_turns", "with_facts", "prove", "wait_ms", "user_id",
                                            "agent_id", "run_id",
                                            "app_id", NULL };

/* ids: decimal strings, numbers too; is_free. NULL and *ok = false: replied. */
static int64_t *read_ids(is_request *r, json_t *list, size_t *n, bool *ok)
{
    int64_t *ids;
    json_t *v;
    size_t i;

    *n = 0;
    if (!*ok || !list || json_is_null(list)) return NULL;
    *n = json_array_size(list);
    ids = json_is_array(list) && *n && *n <= IDS_MAX ? is_calloc(*n, sizeof *ids) : NULL;
    *ok = ids != NULL;
    json_array_foreach(list, i, v)
    {
        if (!*ok) break;
        if (json_is_integer(v) && json_integer_value(v) > 0) ids[i] = json_integer_value(v);
        else *ok = is_memory_id(json_string_value(v), &ids[i]);
    }
    if (*ok) return ids;
    is_free(ids);
    is_reply_error(r, 400, "invalid_request_error", NULL, "ids", "ids must be a list of 1 to %d ids, decimal numbers in strings", IDS_MAX);
    return NULL;
}

/* ids[unknown]: those named that are not this owner's. They are told, so that a slip is not taken for a success. */
static json_t *report_json(const inferscale_forget_report *p, const int64_t *ids, size_t unknown, bool prove)
{
    json_t *list = unknown ? json_array() : NULL;
    json_t *o = json_pack("{s:I,s:I,s:I,s:I,s:I}", "forgotten", (json_int_t)p->forgotten, "withdrawn", (json_int_t)p->withdrawn, "segments",
                          (json_int_t)p->segments, "to_reencode", (json_int_t)p->reencode, "pending", (json_int_t)p->pending);

    for (size_t i = 0; i < unknown; i++) json_array_append_new(list, json_sprintf("%lld", (long long)ids[i]));
    if (unknown) {
        json_object_set_new(o, "not_found", json_integer((json_int_t)unknown));
        json_object_set_new(o, "not_found_ids", list);
    }
    if (prove) is_proof_json(o, p);
    return o;
}

/* All was forgotten, and something about it went wrong: the report says what, beside the error. */
static void reply_half(is_server *s, is_request *r, inferscale_status st, json_t *report)
{
    bool busy = st == INFERSCALE_E_BUSY;
    char told[IS_TOLD_BYTES];

    json_object_set_new(report, "error", json_pack("{s:s,s:s,s:n,s:s}", "message", is_error_message(s, st, inferscale_error(), told), "type", busy
                                                   ? "rate_limit_error" : "server_error",
                                                   "param", "code", is_error_code(s, st)));
    if (busy) is_reply_header(r, "Retry-After", "1");
    is_reply_json(r, busy ? 429 : 500, report);
}

/* None of the ids is there: as DELETE /memories/{id} says it, with the report beside it. */
static void reply_none_there(is_request *r, json_t *report)
{
    json_object_set_new(report, "error", json_pack("{s:s,s:s,s:s,s:s}", "message", "none of the ids is in this memory; GET /memories lists the ids",
                                                   "type", "invalid_request_error", "param", "ids", "code", "not_found"));
    is_reply_json(r, 404, report);
}

static void carry_out(is_server *s, is_request *r, const inferscale_scope *scope, const int64_t *ids, size_t n,
                      inferscale_forget_options *o)
{
    inferscale_forget_report report = { 0 };
    int64_t *unknown = is_calloc(n + 1, sizeof *unknown);
    size_t n_unknown = 0;
    is_status st = INFERSCALE_E_NOMEM;

    o->unknown = unknown;
    o->n_unknown = &n_unknown;
    if (unknown) st = inferscale_forget_with(s->is, scope, ids, n, o, &report);
    else is_fail(st, "out of memory");
    if (st == INFERSCALE_E_NOTFOUND) st = INFERSCALE_OK; /* an owner nobody knows has nothing to be forgotten */
    is_metric_add(s->metrics, IS_M_MEMORY_OPS, "forget", st == INFERSCALE_OK ? "ok" : st == INFERSCALE_E_INVALID ? "refused" : "failed", 1);
    if (st == INFERSCALE_OK && n && n_unknown == n) reply_none_there(r, report_json(&report, unknown, n_unknown, o->prove));
    else if (st == INFERSCALE_OK) is_reply_json(r, 200, report_json(&report, unknown, n_unknown, o->prove));
    else if (st == INFERSCALE_E_TRACE || (st == INFERSCALE_E_BUSY && report.forgotten))
        reply_half(s, r, st, report_json(&report, unknown, n_unknown, o->prove));
    else is_reply_failed(r, st, NULL);
    is_free(unknown);
}

static void forget(is_server *s, is_request *r)
{
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    json_t *body;
    int64_t *ids;
    size_t n;
    is_owner owner;
    bool ok = true;

    if (!is_request_json(r) || !read_body(r, known_forget, &body) || !read_owner(r, body, false, &owner)) return;
    o.all = flag(r, body, "all", &ok);
    o.expired = flag(r, body, "expired", &ok);
    o.with_turns = flag(r, body, "with_turns", &ok);
    o.with_facts = flag(r, body, "with_facts", &ok);
    o.prove = flag(r, body, "prove", &ok);
    o.wait_ms = (uint32_t)number(r, body, "wait_ms", 0, 60000, &ok);
    ids = read_ids(r, json_object_get(body, "ids"), &n, &ok);
    if (ok && (n != 0) + (o.all != 0) + (o.expired != 0) != 1) refuse(r, "ids",
            "say what: ids, \"all\": true or \"expired\": true; one of them");
    else if (ok) carry_out(s, r, &owner.scope, ids, n, &o);
    is_free(ids);
}

/* ---- JSON Lines ------------------------------------------------------------------------------------------------------------ */

static int write_lines(void *ctx, const void *p, size_t n) { return !is_stream_write(ctx, p, n); }

/* The stream begins with the first line: what fails before it is an error, what fails after it cuts the stream. */
static void export(is_server *s, is_request *r)
{
    is_owner owner;
    is_export x = { .is = s->is, .write = write_lines, .ctx = r };
    is_status st;

    if (!read_owner(r, NULL, false, &owner)) return;
    x.scope = &owner.scope;
    if (!is_stream_begin(r, 200, "application/x-ndjson")) return;
    st = is_export_run(&x);
    is_metric_add(s->metrics, IS_M_MEMORY_OPS, "export", st == INFERSCALE_OK && !x.cut ? "ok" : "failed", 1);
    if (st == INFERSCALE_OK && !x.cut) is_stream_end(r);
}

static bool names_owner(const is_key *k) { return k && (*k->user || *k->agent || *k->run || *k->app); }

static void reply_import(is_server *s, is_request *r, const is_import *i)
{
    json_t *o = json_pack("{s:I,s:I,s:I,s:I}", "added", (json_int_t)i->facts, "known", (json_int_t)i->known, "turns", (json_int_t)i->turns,
                          "known_turns", (json_int_t)i->known_turns);
    bool callers = i->status == INFERSCALE_E_PARSE || i->status == INFERSCALE_E_INVALID || i->status == INFERSCALE_E_DENIED;
    int status = i->status == INFERSCALE_OK ? 200 : i->status == INFERSCALE_E_DENIED ? 403 : callers ? 400 : i->status == INFERSCALE_E_BUSY ? 429
        : i->status == INFERSCALE_E_FULL ? 507 : 500;

    is_metric_add(s->metrics, IS_M_MEMORY_OPS, "import", status == 200 ? "ok" : callers ? "refused" : "failed", 1);
    if (status == 200) json_object_set(o, "facts", i->events);
    else
        json_object_set_new(o, "error", json_pack("{s:o,s:s,s:n,s:s?,s:I}", "message", is_json_text(i->error), "type",
                                                  callers ? "invalid_request_error" : "server_error", "param", "code",
                                                  is_error_code(s, i->status), "line", (json_int_t)i->failed_line));
    if (status == 429) is_reply_header(r, "Retry-After", "1");
    is_reply_json(r, status, o);
}

/* The body is the file. A named owner is every line's; without one, for those who may, each line says its own. */
static void import(is_server *s, is_request *r)
{
    size_t n = 0;
    const void *body = is_request_body(r, &n);
    is_owner owner;
    is_import_options o = { 0 };
    is_import done;
    FILE *f;

    if (!read_owner(r, NULL, true, &owner)) return;
    if (n == 0) {
        refuse(r, NULL, "the body is empty; send JSON Lines, one object a line");
        return;
    }
    f = fmemopen((void *)(uintptr_t)body, n, "rb");
    if (!f) {
        is_reply_failed(r, is_fail_errno("the body cannot be read"), NULL);
        return;
    }
    o.scope = owner.scope;
    o.bound = names_owner(is_request_key(r)) || owner.given;
    is_import_run(s->is, &o, f, &done);
    fclose(f);
    reply_import(s, r, &done);
    is_import_free(&done);
}

/* ---- The encoder ----------------------------------------------------------------------------------------------------------- */

static void encode_status(is_server *s, is_request *r)
{
    inferscale_encoder_state state = INFERSCALE_ENCODER_STATE_INIT;
    is_owner owner;
    is_status st;

    if (!read_owner(r, NULL, true, &owner)) return;
    st = inferscale_encode_status(s->is, owner.given ? &owner.scope : NULL, &state);
    if (st == INFERSCALE_OK) {
        json_t *o = is_encoder_json(&state);
        char told[IS_TOLD_BYTES];

        json_object_set_new(o, "last_error", is_json_text(is_told_of(s, state.error, state.last_error, told)));
        if (state.error != INFERSCALE_OK) json_object_set_new(o, "error", json_pack("s?", is_error_code(s, state.error)));
        is_reply_json(r, 200, o);
    } else is_reply_failed(r, st, NULL);
}

static int stop(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    (void)done;
    (void)total;
    (void)what;
    return __atomic_load_n((const volatile int *)ctx, __ATOMIC_RELAXED);
}

/* Encodes now what waits, in the request's own time. */
static void encode(is_server *s, is_request *r)
{
    static const char *const known[] = { "stage", "again", "user_id", "agent_id", "run_id", "app_id", NULL };
    inferscale_encode_options o = INFERSCALE_ENCODE_OPTIONS_INIT;
    const char *stage;
    json_t *body;
    is_owner owner;
    is_status st;
    bool ok = true;

    if (!read_body(r, known, &body) || !read_owner(r, body, false, &owner)) return;
    stage = json_string_value(json_object_get(body, "stage"));
    o.again = flag(r, body, "again", &ok);
    if (!ok) return;
    if (json_object_get(body, "stage") && (!stage || (strcmp(stage, "first") && strcmp(stage, "refine") && strcmp(stage, "all")))) {
        refuse(r, "stage", "stage must be \"first\", \"refine\" or \"all\"");
        return;
    }
    o.stage = !stage || *stage == 'f' ? INFERSCALE_STAGE_FIRST : *stage == 'r' ? INFERSCALE_STAGE_REFINE : INFERSCALE_STAGE_ALL;
    o.on_progress = stop;
    o.progress_ctx = (void *)(uintptr_t)is_request_cancel(r);
    st = inferscale_encode(s->is, &owner.scope, &o);
    if (st == INFERSCALE_OK || st == INFERSCALE_E_NOTFOUND)
        is_reply_json(r, 200, json_pack("{s:I,s:I,s:I,s:I,s:I,s:I}", "facts", (json_int_t)o.facts_encoded,
                                        "tokens_stored", (json_int_t)o.tokens_stored,
                                        "tokens_computed", (json_int_t)o.tokens_computed, "facts_left", (json_int_t)o.facts_left, "sets",
                                        (json_int_t)o.sets_encoded, "segments_rounded", (json_int_t)o.rounded));
    else is_reply_failed(r, st, NULL);
}

/* ---- What there is --------------------------------------------------------------------------------------------------------- */

static void usage(is_server *s, is_request *r)
{
    inferscale_usage_report *u = NULL;
    is_owner owner;
    is_status st;

    if (!read_owner(r, NULL, true, &owner)) return;
    st = inferscale_usage(s->is, owner.given ? &owner.scope : NULL, &u);
    if (st != INFERSCALE_OK) {
        is_reply_failed(r, st, NULL);
        return;
    }
    if (may_ask_for_all(r)) {
        is_reply_json(r, 200, is_usage_json(u));
    } else { /* the sizes of the whole store tell about others */
        json_t *all = is_usage_json(u), *rows = json_incref(json_object_get(all, "rows"));

        json_decref(all);
        is_reply_json(r, 200, json_pack("{s:o}", "rows", rows));
    }
    inferscale_usage_free(u);
}

static json_t *model_json(const inferscale_model_info *i)
{
    return json_pack("{s:o,s:o,s:o,s:s,s:s,s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:b,s:o,s:b,s:f,s:f}", "name", is_json_text(i->name), "arch",
                     is_json_text(i->arch), "weights", is_json_text(i->weights), "fingerprint", i->fingerprint, "engine", i->engine, "cpu",
                     is_json_text(i->cpu), "params", (json_int_t)i->n_params, "layers", (json_int_t)i->n_layers, "planes",
                         (json_int_t)i->n_planes,
                     "context", (json_int_t)i->n_ctx, "context_trained", (json_int_t)i->n_ctx_train, "vocabulary", (json_int_t)i->n_vocab,
                     "kv_bytes_per_token", (json_int_t)i->kv_bytes_per_token, "can_inject", i->can_inject, "why_not", is_json_text(i->why_not),
                     "flash_attention", i->flash_attention, "selftest_kl", i->selftest_kl, "selftest_noise", i->selftest_noise);
}

static json_t *store_json(const inferscale_store_info *i)
{
    return json_pack("{s:o,s:o,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:i}", "home", is_json_text(i->home), "embedder",
                     is_json_text(i->embedder),
                     "embedder_fingerprint", i->embedder_fingerprint, "owners", (json_int_t)i->n_partitions, "facts", (json_int_t)i->n_facts,
                     "turns", (json_int_t)i->n_turns, "embedded", (json_int_t)i->n_embedded, "segments", (json_int_t)i->n_segments, "bank_bytes",
                     (json_int_t)i->bank_bytes, "vault_bytes", (json_int_t)i->vault_bytes, "ram_bytes", (json_int_t)i->ram_bytes_used,
                     "ram_bytes_budget", (json_int_t)i->ram_bytes_budget, "schema", i->schema_version);
}

/* The store is everybody's: only for those who may ask about everybody. */
static void info(is_server *s, is_request *r)
{
    inferscale_model_info model;
    inferscale_store_info store;
    is_upstream *upstreams;
    size_t n_upstreams;
    is_status st = inferscale_model(s->is, &model);
    json_t *o;

    if (st == INFERSCALE_OK && may_ask_for_all(r)) st = inferscale_store(s->is, 0, &store);
    if (st != INFERSCALE_OK) {
        is_reply_failed(r, st, NULL);
        return;
    }
    o = json_pack("{s:s,s:s,s:o,s:o}", "version", inferscale_version(), "served_as", s->model, "started", is_json_time(s->started), "model",
                  model_json(&model));
    json_object_set_new(o, "infer_default", json_boolean(is_extract_default(s)));
    if (may_ask_for_all(r)) json_object_set_new(o, "store", store_json(&store));
    if (may_ask_for_all(r)) json_object_set_new(o, "extraction", is_extract_json(s));
    upstreams = is_upstreams_of(s->is, &n_upstreams);
    if (may_ask_for_all(r) && upstreams) json_object_set_new(o, "upstreams", is_upstreams_json(upstreams, n_upstreams));
    is_free(upstreams);
    is_reply_json(r, 200, o);
}

/* ---- What would be asked --------------------------------------------------------------------------------------------------- */

static const char *const known_dry[] = { "question", "query", "k", "mode", "stage", "repair", "threshold", "filters", "user_id",
                                         "agent_id", "run_id", "app_id",
                                         NULL };

/* false: replied. */
static bool read_stage(is_request *r, json_t *body, int *out)
{
    static const char *const names[] = { "best", "first", "refine" }; /* 0 and INFERSCALE_STAGE_*, in order */
    json_t *said = json_object_get(body, "stage");
    const char *name = json_is_null(said) || !said ? names[0] : json_string_value(said);

    for (int i = 0; name && i < 3; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = i;
        return true;
    }
    refuse(r, "stage", "stage must be \"best\", \"first\" or \"refine\"");
    return false;
}

/* false: replied. */
static bool read_dry(is_server *s, is_request *r, json_t *body, inferscale_ask_options *a, inferscale_recall_options *f)
{
    json_t *threshold = json_object_get(body, "threshold"), *said = json_object_get(body, "mode");
    const char *mode = said && !json_is_null(said) ? json_string_value(said) : s->config->mode;
    bool ok = true;

    a->k = (uint32_t)number(r, body, "k", s->config->k, 1000, &ok);
    a->repair = (uint32_t)number(r, body, "repair", 0, 1000, &ok);
    if (!ok) return false;
    if (!mode || (strcmp(mode, "kv") && strcmp(mode, "text") && strcmp(mode, "none"))) {
        refuse(r, "mode", "mode must be \"kv\", \"text\" or \"none\"");
        return false;
    }
    a->mode = *mode == 'k' ? INFERSCALE_MODE_KV : *mode == 't' ? INFERSCALE_MODE_TEXT : INFERSCALE_MODE_NONE;
    if (!read_stage(r, body, &a->stage)) return false;
    if (threshold && !json_is_null(threshold)) {
        if (!is_threshold_read(threshold, &f->threshold)) {
            refuse(r, "threshold", "threshold must be a number from 0 to 1");
            return false;
        }
        f->has_threshold = 1;
    }
    a->recall = f;
    return true;
}

static void reply_dry(is_server *s, is_request *r, const inferscale_scope *scope, const char *question, const inferscale_ask_options *a)
{
    inferscale_preview *p = NULL;
    is_status st = inferscale_dry_run(s->is, scope, question, a, &p);

    if (st == INFERSCALE_OK) is_reply_json(r, 200, is_preview_json(p));
    else is_reply_failed(r, st, NULL);
    inferscale_preview_free(p);
}

static void dry_run(is_server *s, is_request *r)
{
    inferscale_ask_options a = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_recall_options f = INFERSCALE_RECALL_OPTIONS_INIT;
    json_t *body = is_request_json(r);
    const char *question;
    char *metadata = NULL;
    is_filter filter;
    is_owner owner;
    is_status st;

    if (!body || !read_body(r, known_dry, &body)) return;
    st = is_filter_parse(json_object_get(body, "filters"), &filter);
    if (st == INFERSCALE_OK && json_object_size(filter.names)) {
        is_filter_free(&filter);
        st = is_fail(INFERSCALE_E_INVALID, "say whose beside the filters, not in them");
    }
    if (st != INFERSCALE_OK) {
        is_reply_failed(r, st, "filters");
        return;
    }
    question = json_string_value(json_object_get(body, json_object_get(body, "question") ? "question" : "query"));
    f.from = filter.from;
    f.to = filter.to;
    f.as_of = filter.as_of;
    if (json_object_size(filter.metadata)) f.metadata = metadata = is_json_string(filter.metadata);
    if (!question) refuse(r, "question", "question must be a string");
    else if (json_object_size(filter.metadata) && !metadata) is_reply_failed(r, is_fail(INFERSCALE_E_NOMEM, "out of memory"), NULL);
    else if (read_owner(r, body, false, &owner) && read_dry(s, r, body, &a, &f)) reply_dry(s, r, &owner.scope, question, &a);
    is_free(metadata);
    is_filter_free(&filter);
}

const is_route is_routes_own[] = {
    { "POST", "/inferscale/forget", forget, IS_FACE_OPENAI, 0 },
    { "GET", "/inferscale/export", export, IS_FACE_OPENAI, 0 },
    { "POST", "/inferscale/import", import, IS_FACE_OPENAI, 0 },
    { "GET", "/inferscale/encode", encode_status, IS_FACE_OPENAI, 0 },
    { "POST", "/inferscale/encode", encode, IS_FACE_OPENAI, IS_ROUTE_ENGINE },
    { "GET", "/inferscale/usage", usage, IS_FACE_OPENAI, 0 },
    { "GET", "/inferscale/info", info, IS_FACE_OPENAI, 0 },
    { "POST", "/inferscale/dry-run", dry_run, IS_FACE_OPENAI, IS_ROUTE_ENGINE },
    { 0 },
};
