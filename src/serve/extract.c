/* extract.c - see extract.h: turns in, facts out, one decision each. */
#include <stdio.h>
#include <string.h>

#include "api/handle.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "base/utf8.h"
#include "serve/extract_in.h"
#include "serve/memory.h"

enum { MESSAGES_MAX = 1000, NEAREST = 5 };

typedef struct extraction {
    is_server *s;
    const inferscale_scope *scope;
    const is_extract_options *o;
    is_extractor x;
    extract_line *lines;           /* [n] what was said, in order */
    char **texts;                  /* [n] owned */
    size_t n;
    char *metadata;                /* JSON of each fact; NULL = none */
    is_partition p;
    json_t *events;
} extraction;

static is_status no_memory(void) { return is_fail(INFERSCALE_E_NOMEM, "out of memory for an extraction"); }

static void count(const extraction *e, const char *result, double by)
{
    is_metric_add(e->s->metrics, IS_M_MEMORY_OPS, "extract", result, by);
}

/* ---- Messages -------------------------------------------------------------------------------------------------------------- */

/* A string, or a list of parts of type text. */
static is_status content_of(json_t *v, size_t which, char **out)
{
    is_buf b = IS_BUF_INIT;
    json_t *part;
    size_t i;

    *out = NULL;
    if (json_is_string(v)) is_buf_str(&b, json_string_value(v));
    else if (!json_is_array(v)) return is_fail(INFERSCALE_E_INVALID, "message %zu: content must be text", which + 1);
    json_array_foreach(v, i, part)
    {
        const char *text = json_string_value(json_object_get(part, "text"));

        if (!text) {
            is_buf_free(&b);
            return is_fail(INFERSCALE_E_INVALID, "message %zu: only parts of type \"text\" are extracted from", which + 1);
        }
        if (i) is_buf_str(&b, "\n");
        is_buf_str(&b, text);
    }
    *out = is_buf_take(&b);
    return *out ? INFERSCALE_OK : no_memory();
}

/* Where recalled memory stands, and what no person said. */
static bool is_not_said(const char *role)
{
    return strcmp(role, "system") == 0 || strcmp(role, "developer") == 0 || strcmp(role, "tool") == 0 || strcmp(role, "function") == 0;
}

static is_status read_message(extraction *e, json_t *m, size_t which)
{
    const char *role = json_string_value(json_object_get(m, "role")), *name = json_string_value(json_object_get(m, "name"));
    json_t *when = json_object_get(m, "timestamp");
    extract_line *l = &e->lines[e->n];
    char *text = NULL;

    if (!role) return is_fail(INFERSCALE_E_INVALID, "message %zu must be an object with role and content", which + 1);
    if (is_not_said(role)) return INFERSCALE_OK;
    if (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0)
        return is_fail(INFERSCALE_E_INVALID, "message %zu: its role is none of user, assistant, system and tool", which + 1);
    if (!when || json_is_null(when)) when = json_object_get(m, "created_at");
    *l = (extract_line){ .is_user = role[0] == 'u', .who = name && *name ? name : role };
    l->when = e->n ? e->lines[e->n - 1].when : e->o->when ? e->o->when : is_now_epoch();
    l->dated = e->n ? e->lines[e->n - 1].dated : e->o->when != 0;
    if (when && !json_is_null(when)) l->dated = true;
    IS_TRY(is_member_when(when, "the time of a message", &l->when));
    IS_TRY(content_of(json_object_get(m, "content"), which, &text));
    if (is_utf8_blank(text, strlen(text))) {
        is_free(text);
        return INFERSCALE_OK;
    }
    l->text = e->texts[e->n++] = text;
    return INFERSCALE_OK;
}

static is_status read_messages(extraction *e, json_t *messages)
{
    json_t *m;
    size_t i, n = json_array_size(messages);

    if (!json_is_array(messages) || n == 0 || n > MESSAGES_MAX)
        return is_fail(INFERSCALE_E_INVALID, "messages must be a list of 1 to %d messages", MESSAGES_MAX);
    e->lines = is_calloc(n, sizeof *e->lines);
    e->texts = is_calloc(n, sizeof *e->texts);
    if (!e->lines || !e->texts) return no_memory();
    json_array_foreach(messages, i, m) IS_TRY(read_message(e, m, i));
    return INFERSCALE_OK;
}

/* What was said is kept first, in one transaction. */
static is_status keep_turns(extraction *e)
{
    inferscale_turn *turns = is_calloc(e->n + 1, sizeof *turns);
    int64_t *ids = is_calloc(e->n + 1, sizeof *ids);
    is_status st = turns && ids ? INFERSCALE_OK : no_memory();

    for (size_t i = 0; st == INFERSCALE_OK && i < e->n; i++)
        turns[i] = (inferscale_turn){ .conversation = e->scope->run && *e->scope->run ? e->scope->run : NULL, .speaker = e->lines[i].who,
                                      .text = e->lines[i].text, .time = e->lines[i].when,
                                      .undated = !e->lines[i].dated };
    if (st == INFERSCALE_OK) st = inferscale_add_turns(e->s->is, e->scope, turns, e->n, ids);
    for (size_t i = 0; st == INFERSCALE_OK && i < e->n; i++) e->lines[i].turn = ids[i];
    if (st == INFERSCALE_OK) st = is_bank_partition(e->s->is->bank, e->scope, false, &e->p);
    is_free(ids);
    is_free(turns);
    return st;
}

/* ---- One fact -------------------------------------------------------------------------------------------------------------- */

static is_status say(extraction *e, const char *event, int64_t id, const char *text, const char *previous)
{
    char number[24];
    json_t *o;

    snprintf(number, sizeof number, "%lld", (long long)id);
    o = json_pack("{s:s,s:s,s:s}", "id", number, "memory", text, "event", event);
    if (o && previous) json_object_set_new(o, "previous_memory", json_string(previous));
    return o && json_array_append_new(e->events, o) == 0 ? INFERSCALE_OK : no_memory();
}

static is_status add(extraction *e, const inferscale_fact *f)
{
    inferscale_event event;

    IS_TRY(inferscale_remember(e->s->is, e->scope, f, 1, &event));
    if (event.event == INFERSCALE_EVENT_UPDATE) { /* it took the date */
        count(e, "update", 1);
        return say(e, "UPDATE", event.id, f->text, f->text);
    }
    count(e, event.event == INFERSCALE_EVENT_NONE ? "noop" : "add", 1);
    return say(e, event.event == INFERSCALE_EVENT_NONE ? "NOOP" : "ADD", event.id, f->text, NULL);
}

/* E_BUSY of a change: it is done, and a question that used the old text ends by itself. */
static bool done(is_status st)
{
    return st == INFERSCALE_OK || st == INFERSCALE_E_BUSY;
}

static is_status change(extraction *e, const inferscale_fact *f, const inferscale_item *old)
{
    is_status st = inferscale_update(e->s->is, e->scope, old->id, f);

    if (!done(st)) return st;
    count(e, "update", 1);
    return say(e, "UPDATE", old->id, f->text, old->text);
}

/* The old fact ends where the new one begins; both stay in the history. */
static is_status end(extraction *e, const inferscale_fact *f, const inferscale_item *old)
{
    int64_t id = 0;
    is_status st = inferscale_supersede(e->s->is, e->scope, old->id, f, &id);

    if (!done(st)) return st;
    count(e, "delete", 1);
    count(e, "add", 1);
    IS_TRY(say(e, "DELETE", old->id, old->text, NULL));
    return say(e, "ADD", id, f->text, NULL);
}

/* May a model change it? Not what was said later than this, and not what was marked. */
static bool may_change(const inferscale_item *old, const inferscale_fact *f)
{
    json_t *m = old->metadata ? json_loads(old->metadata, 0, NULL) : NULL;
    bool immutable = json_is_true(json_object_get(m, "immutable"));

    json_decref(m);
    return !immutable && !old->pinned && old->superseded_by == 0 && is_time_seconds(old->event_time) <= is_time_seconds(f->event_time);
}

static is_status decide(extraction *e, const inferscale_fact *f, const inferscale_list *nearest)
{
    const inferscale_item *old[NEAREST];
    const char *texts[NEAREST];
    extract_choice choice = CHOICE_UNREADABLE;
    size_t n = 0, which = 0;
    is_status st;

    for (size_t i = 0; i < nearest->n && n < NEAREST; i++) {
        if (!extract_related(f->text, nearest->items[i].text)) continue;
        old[n] = &nearest->items[i];
        texts[n++] = nearest->items[i].text;
    }
    if (n == 0) return add(e, f);
    st = extract_choose(&e->x, f->text, texts, n, &choice, &which);
    if (st == INFERSCALE_E_CANCELLED) return st;
    if (st != INFERSCALE_OK) {
        is_log(IS_LOG_WARN, "extract: what to do with a fact could not be asked (%s): it is added", is_error());
        choice = CHOICE_UNREADABLE;
    }
    if (choice == CHOICE_UNREADABLE) count(e, "undecided", 1);
    if (choice == CHOICE_NOOP) {
        count(e, "noop", 1);
        return say(e, "NOOP", old[which]->id, old[which]->text, NULL);
    }
    if (choice == CHOICE_UPDATE && may_change(old[which], f)) return change(e, f, old[which]);
    if (choice == CHOICE_DELETE && may_change(old[which], f)) return end(e, f, old[which]);
    return add(e, f);
}

static is_status take(extraction *e, const extract_fact *found, const extract_line *line)
{
    inferscale_fact f = { .text = found->text, .event_time = line->when, .source_turn = line->turn, .expires = e->o->expires,
                          .metadata = e->metadata, .undated = !line->dated };
    inferscale_recall_options r = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list *nearest = NULL;
    bool forgotten = false;
    is_status st = is_bank_is_tombstoned(e->s->is->bank, &e->p, found->text, &forgotten);

    if (st != INFERSCALE_OK) return st;
    if (forgotten) {
        count(e, extract_faults[FAULT_FORGOTTEN], 1);
        return INFERSCALE_OK;
    }
    r.k = NEAREST;
    st = inferscale_recall(e->s->is, e->scope, found->text, &r, &nearest);
    if (st == INFERSCALE_OK) st = decide(e, &f, nearest);
    inferscale_list_free(nearest);
    return st;
}

/* ---- The whole ------------------------------------------------------------------------------------------------------------- */

/* Lines that the model is shown at once: few enough, and short enough together. */
static size_t window(const extraction *e, size_t from)
{
    size_t n = 0, chars = 0;

    while (from + n < e->n && n < EXTRACT_LINES) {
        chars += strlen(e->lines[from + n].text);
        if (n && chars > EXTRACT_CHARS) break;
        n++;
    }
    return n;
}

static is_status extract_all(extraction *e)
{
    for (size_t from = 0, n; from < e->n; from += n) {
        extract_found found;
        bool user = false;

        n = window(e, from);
        for (size_t i = 0; i < n; i++) user = user || e->lines[from + i].is_user;
        if (!user) continue;
        IS_TRY(extract_facts(&e->x, e->lines + from, n, &found));
        for (int i = 0; i < N_FAULTS; i++)
            if (found.refused[i]) count(e, extract_faults[i], found.refused[i]);
        for (size_t i = 0; i < found.n; i++) IS_TRY(take(e, &found.facts[i], &e->lines[from + found.facts[i].line]));
    }
    return INFERSCALE_OK;
}

is_extractor is_extractor_of(const is_server *s)
{
    return (is_extractor){ .is = s->is, .url = s->config->extractor, .model = s->config->extractor_model, .key = s->config->extractor_key };
}

is_status is_extract_with(is_server *s, const inferscale_scope *scope, json_t *messages, const is_extract_options *o, json_t **events)
{
    extraction e = { .s = s, .scope = scope, .o = o, .x = is_extractor_of(s) };
    is_status st;

    e.x.cancel = o->cancel;
    *events = NULL;
    e.events = json_array();
    st = e.events ? read_messages(&e, messages) : no_memory();
    if (st == INFERSCALE_OK && o->metadata && json_object_size(o->metadata)) {
        size_t n = json_dumpb(o->metadata, NULL, 0, JSON_COMPACT);

        e.metadata = is_malloc(n + 1);
        if (!e.metadata) st = no_memory();
        else e.metadata[json_dumpb(o->metadata, e.metadata, n, JSON_COMPACT)] = 0;
    }
    if (st == INFERSCALE_OK && e.n) st = keep_turns(&e);
    if (st == INFERSCALE_OK && e.n) st = extract_all(&e);
    if (st == INFERSCALE_OK) *events = json_incref(e.events);
    else count(&e, "failed", 1);
    json_decref(e.events);
    for (size_t i = 0; e.texts && i < e.n; i++) is_free(e.texts[i]);
    is_free(e.texts);
    is_free(e.lines);
    is_free(e.metadata);
    return st;
}

is_status is_extract(is_server *s, const inferscale_scope *scope, json_t *messages, int64_t when, json_t **events)
{
    const is_extract_options o = { .when = when };

    return is_extract_with(s, scope, messages, &o, events);
}
