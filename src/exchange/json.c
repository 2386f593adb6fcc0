/* json.c - what the library reports, as JSON: the same from the command line and from the server. */
#include "exchange/json.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "base/words.h"

json_t *is_json_text(const char *s)
{
    size_t n = s ? strlen(s) : 0, bad;
    is_buf clean = IS_BUF_INIT;
    json_t *out;
    if (!s) return json_null();
    if (is_utf8_valid(s, n, NULL)) return json_stringn(s, n);
    while (n && !is_utf8_valid(s, n, &bad)) {
        is_buf_add(&clean, s, bad);
        is_buf_str(&clean, "\xef\xbf\xbd");
        s += bad + 1;
        n -= bad + 1;
    }
    is_buf_add(&clean, s, n);
    out = is_buf_ok(&clean) ? json_stringn((const char *)clean.data, clean.len) : NULL;
    is_buf_free(&clean);
    return out ? out : json_string("");
}

json_t *is_json_time(int64_t time)
{
    char iso[32];
    if (!is_time_given(time)) return json_null();
    is_date_iso(time, iso);
    return json_string(iso);
}

is_status is_json_when(const json_t *v, const char *what, is_when *out)
{
    if (json_is_integer(v)) return is_time_read_number(json_integer_value(v), what, out);
    if (json_is_real(v)) return is_time_read_real(json_real_value(v), what, out);
    if (json_is_string(v)) return is_time_read(json_string_value(v), what, out);
    *out = (is_when){ 0 };
    return is_fail(INFERSCALE_E_INVALID, "%.60s is no time; write it as \"2024-05-01\", \"2024-05-01T13:56:00Z\" or in seconds "
                   "since 1970", what);
}

static char *dumped(const json_t *v, size_t flags)
{
    size_t n = v ? json_dumpb(v, NULL, 0, flags) : 0;
    char *s = n ? is_malloc(n + 1) : NULL;
    if (s) json_dumpb(v, s, n, flags);
    if (s) s[n] = '\0';
    return s;
}

char *is_json_string(const json_t *v) { return dumped(v, JSON_COMPACT); }

char *is_json_shown(const json_t *v) { return dumped(v, JSON_COMPACT | JSON_REAL_PRECISION(15)); }

static const char *source_name(int source)
{
    return source == INFERSCALE_SOURCE_STORED ? "stored" : source == INFERSCALE_SOURCE_COMPUTED ? "computed" : "resident";
}

static const char *mode_name(int mode)
{
    return mode == INFERSCALE_MODE_KV ? "kv" : mode == INFERSCALE_MODE_TEXT ? "text" : "none";
}

json_t *is_json_fallbacks(unsigned fallbacks)
{
    json_t *list = json_array();

    for (unsigned i = 0; list && i < INFERSCALE_N_FALLBACKS; i++)
        if (fallbacks >> i & 1) json_array_append_new(list, json_string(inferscale_fallback_name(i)));
    return list;
}

void is_json_search(json_t *o, const inferscale_list *list)
{
    json_object_set_new(o, "words_only", json_integer((json_int_t)list->n_unembedded));
    json_object_set_new(o, "index_built", json_boolean(list->index_built));
    json_object_set_new(o, "index_ms", json_real((double)(int64_t)(list->index_ms * 1000) / 1000));
    json_object_set_new(o, "fallback", is_json_text(list->fallback ? list->fallback : ""));
    json_object_set_new(o, "fallbacks", is_json_fallbacks(list->fallbacks));
}

/* ---- Events ---------------------------------------------------------------------------------- */

const char *is_event_name(int event)
{
    return event == INFERSCALE_EVENT_ADD      ? "ADD"
           : event == INFERSCALE_EVENT_UPDATE ? "UPDATE"
           : event == INFERSCALE_EVENT_DELETE ? "DELETE"
           : event == INFERSCALE_EVENT_NONE   ? "NONE"
                                              : "unknown";
}

enum { N_KEPT = 3 };
static const struct { int bit; const char *name, *words; } kept_names[N_KEPT] = {
    { INFERSCALE_KEPT_DATE, "date", "date" },
    { INFERSCALE_KEPT_METADATA, "metadata", "metadata" },
    { INFERSCALE_KEPT_EXPIRES, "expires", "expiry" },
};

bool is_event_text(const inferscale_event *e, char out[192])
{
    char what[64] = "";

    *out = '\0';
    for (size_t i = 0; i < N_KEPT; i++)
        if (e->kept & kept_names[i].bit)
            snprintf(what + strlen(what), sizeof what - strlen(what), "%s%s",
                     *what ? " and its " : "its ", kept_names[i].words);
    if (e->event == INFERSCALE_EVENT_UPDATE)
        snprintf(out, 192, "fact %lld was known without a date, and has this one now",
                 (long long)e->id);
    else if (e->kept)
        snprintf(out, 192, "fact %lld was known", (long long)e->id);
    if (e->kept)
        snprintf(out + strlen(out), 192 - strlen(out), "; it keeps %s, and %s changes that", what,
                 is_words(IS_CALL_UPDATE));
    return *out != '\0';
}

void is_json_kept(json_t *o, const inferscale_event *e)
{
    char note[192];
    json_t *kept = e->kept ? json_array() : NULL;

    for (size_t i = 0; kept && i < N_KEPT; i++)
        if (e->kept & kept_names[i].bit)
            json_array_append_new(kept, json_string(kept_names[i].name));
    if (kept) json_object_set_new(o, "kept", kept);
    if (is_event_text(e, note)) json_object_set_new(o, "note", json_string(note));
}

json_t *is_event_json(const inferscale_event *e)
{
    json_t *o = json_pack("{s:I,s:s}", "id", (json_int_t)e->id, "event", is_event_name(e->event));

    if (!o) return NULL;
    if (e->again) json_object_set_new(o, "again", json_true());
    if (e->same_as) json_object_set_new(o, "same_as", json_integer(e->same_as));
    is_json_kept(o, e);
    return o;
}

/* ---- Items ---------------------------------------------------------------------------------------------------------------- */

static void set_text(json_t *o, const char *name, const char *s)
{
    if (s && *s) json_object_set_new(o, name, is_json_text(s));
}

json_t *is_item_json(const inferscale_item *t, unsigned with)
{
    bool fact = t->kind == INFERSCALE_FACTS;
    json_t *o =
        json_pack("{s:I,s:s,s:o}", "id", (json_int_t)t->id, "kind", fact ? "fact" : "turn", "text", is_json_text(t->text));
    if (with & IS_ITEM_SCORE) {
        json_object_set_new(o, "score", json_real(t->score));
        json_object_set_new(o, "score_lexical", json_real(t->score_lexical));
        json_object_set_new(o, "score_dense", json_real(t->score_dense));
        json_object_set_new(o, "score_fused", json_real(t->score_fused));
    }
    json_object_set_new(o, fact ? "event_time" : "time", is_json_time(t->event_time));
    json_object_set_new(o, "dated", json_boolean(t->dated));
    json_object_set_new(o, "write_time", is_json_time(t->write_time));
    if (fact) {
        json_t *metadata = json_loads(t->metadata && *t->metadata ? t->metadata : "{}", 0, NULL);
        json_object_set_new(o, "version", json_integer(t->version));
        json_object_set_new(o, "valid_from", is_json_time(t->valid_from));
        json_object_set_new(o, "valid_to", is_json_time(t->valid_to));
        json_object_set_new(o, "expires", is_json_time(t->expires));
        json_object_set_new(o, "source_turn", t->source_turn ? json_integer(t->source_turn) : json_null());
        json_object_set_new(o, "metadata", metadata ? metadata : json_object());
        json_object_set_new(o, "pinned", json_boolean(t->pinned));
        json_object_set_new(o, "expired", json_boolean(t->expired));
        if (t->superseded_by) json_object_set_new(o, "superseded_by", json_integer(t->superseded_by));
        if (with & IS_ITEM_KV) json_object_set_new(o, "kv_ready", json_boolean(t->kv_ready));
    } else {
        set_text(o, "conversation", t->conversation);
        set_text(o, "speaker", t->speaker);
        set_text(o, "external_id", t->external_id);
        if (t->withdrawn) json_object_set_new(o, "withdrawn", json_true());
    }
    set_text(o, "user", t->user);
    set_text(o, "agent", t->agent);
    set_text(o, "run", t->run);
    set_text(o, "app", t->app);
    return o;
}

/* ---- Reports -------------------------------------------------------------------------------------------------------------- */

json_t *is_encoder_json(const inferscale_encoder_state *s)
{
    json_t *o = json_pack("{s:b,s:b,s:b,s:b,s:f,s:f,s:f,s:f,s:f,s:f}", "background", s->background, "running", s->running,
                          "elsewhere", s->elsewhere, "model_known", s->model_known, "lag_s", s->lag_s, "facts_per_s", s->facts_per_s,
                          "first_lag_s", s->first_lag_s, "share", s->share, "questions_s", s->questions_s, "shared_s", s->shared_s);
    const struct { const char *name; uint64_t v; } counts[] = {
        { "n_unembedded", s->n_unembedded },     { "n_unencoded", s->n_unencoded },
        { "n_unrefined", s->n_unrefined },       { "n_passed", s->n_passed },
        { "items_embedded", s->items_embedded }, { "facts_encoded", s->facts_encoded },
        { "facts_refined", s->facts_refined },   { "tokens_stored", s->tokens_stored },
        { "tokens_computed", s->tokens_computed }, { "aborted_for_questions", s->aborted_for_questions },
        { "n_errors", s->n_errors },             { "n_wide", s->n_wide },
        { "wide_bytes", s->wide_bytes },         { "narrowed", s->narrowed },
        { "narrowed_bytes", s->narrowed_bytes }, { "n_slices", s->n_slices },
        { "n_pauses", s->n_pauses },             { "n_drops", s->n_drops },
    };

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        json_object_set_new(o, counts[i].name, json_integer((json_int_t)counts[i].v));
    json_object_set_new(o, "error", s->error == INFERSCALE_OK ? json_null() : json_string(inferscale_status_name(s->error)));
    json_object_set_new(o, "last_error", is_json_text(s->last_error));
    json_object_set_new(o, "error_time", is_json_time(s->error_time));
    json_object_set_new(o, "retry_s", json_real(s->retry_s));
    return o;
}

static json_t *row_json(const inferscale_usage_row *r)
{
    return json_pack("{s:o,s:s,s:o,s:s,s:s,s:o,s:b,s:I,s:I}", "tenant", is_json_text(r->tenant), "owner_kind", r->owner_kind, "owner",
                     is_json_text(r->owner), "what", r->what, "model", r->model, "policy", is_json_text(r->policy), "current", r->current,
                     "n", (json_int_t)r->n, "bytes", (json_int_t)r->bytes);
}

json_t *is_usage_json(const inferscale_usage_report *u)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < u->n; i++) json_array_append_new(rows, row_json(&u->rows[i]));
    return json_pack("{s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:o}", "rows", rows, "bank_bytes", (json_int_t)u->bank_bytes, "bank_free_bytes",
                             (json_int_t)u->bank_free_bytes, "log_bytes", (json_int_t)u->log_bytes, "vault_bytes",
                             (json_int_t)u->vault_bytes, "vault_files", (json_int_t)u->vault_files, "unnamed_bytes",
                             (json_int_t)u->unnamed_bytes, "wide_bytes", u->model_known ? json_integer((json_int_t)u->wide_bytes) : json_null());
}

static json_t *lines(const char *text)
{
    json_t *list = json_array();
    while (*text) {
        size_t n = strcspn(text, "\n");
        json_array_append_new(list, json_stringn(text, n));
        text += n + (text[n] == '\n');
    }
    return list;
}

void is_proof_text(const inferscale_forget_report *r, char out[512])
{
    const unsigned long long traces = r->traces, kept = r->allowed, files = r->scanned_files;
    const bool one = kept == 1;
    size_t at;

    if (!r->needles)
        snprintf(out, 512, "There was nothing to look for, so nothing is proven%s.",
                 r->unsearched ? ": its pieces are too short or too uniform" : "");
    else if (traces)
        snprintf(out, 512, "%llu trace%s of it left in %llu files: do not rely on it being gone.", traces, traces == 1 ? " is" : "s are", files);
    else
        snprintf(out, 512, "%s in %llu files.", r->proven ? "No trace of it is left" : "No trace of it was found", files);
    at = strlen(out);
    if (r->needles && kept)
        snprintf(out + at, 512 - at, " The same words or values stand in %llu place%s of what you keep (another memory that says the same, "
                 "say): %s no trace%s of what was forgotten.", kept, one ? "" : "s", one ? "that is" : "those are", one ? "" : "s");
}

void is_proof_json(json_t *o, const inferscale_forget_report *r)
{
    char summary[512];

    is_proof_text(r, summary);
    json_object_set_new(o, "summary", is_json_text(summary));
    json_object_set_new(o, "proven", json_boolean(r->proven));
    json_object_set_new(o, "needles", json_integer((json_int_t)r->needles));
    json_object_set_new(o, "unsearched", json_integer((json_int_t)r->unsearched));
    json_object_set_new(o, "scanned_bytes", json_integer((json_int_t)r->scanned_bytes));
    json_object_set_new(o, "scanned_files", json_integer((json_int_t)r->scanned_files));
    json_object_set_new(o, "traces", json_integer((json_int_t)r->traces));
    json_object_set_new(o, "allowed", json_integer((json_int_t)r->allowed));
    json_object_set_new(o, "traces_at", lines(r->trace_text));
    json_object_set_new(o, "allowed_at", lines(r->allowed_text));
}

json_t *is_preview_json(const inferscale_preview *p)
{
    json_t *parts = json_array(), *facts = json_array();
    for (size_t i = 0; i < p->n_parts; i++) {
        const inferscale_preview_part *part = &p->parts[i];
        bool fact = strcmp(part->role, "fact") == 0;
        json_array_append_new(parts, json_pack("{s:s,s:s,s:I,s:I,s:o}", "role", part->role, "source", source_name(part->source),
                                               "position", (json_int_t)part->position, "tokens", (json_int_t)part->tokens, "text",
                                               is_json_text(part->text)));
        if (fact)
            json_array_append_new(facts, json_pack("{s:I,s:i,s:f,s:I,s:s}", "id", (json_int_t)part->id, "version", part->version, "score",
                                                   part->score, "tokens", (json_int_t)part->tokens, "source", source_name(part->source)));
    }
    return json_pack("{s:b,s:s,s:o,s:o,s:o,s:I,s:o,s:o,s:I,s:I,s:I,s:I,s:f,s:f,s:f}", "dry_run", 1, "mode", mode_name(p->mode), "prompt",
                             is_json_text(p->prompt), "fallback", is_json_text(p->fallback), "fallbacks",
                             is_json_fallbacks(p->fallbacks), "not_embedded", (json_int_t)p->n_unembedded, "facts", facts, "parts", parts,
                             "facts_dropped", (json_int_t)p->n_dropped, "tokens_prompt", (json_int_t)p->tokens_prompt, "tokens_stored",
                             (json_int_t)p->tokens_stored, "tokens_computed", (json_int_t)p->tokens_computed, "embed_ms", p->embed_ms,
                             "recall_ms", p->recall_ms, "plan_ms", p->plan_ms);
}
