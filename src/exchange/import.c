/* import.c - JSON Lines into a store, in transactions, with the ids of turns mapped. */
#include "exchange/import.h"

#include <string.h>

#include "base/mem.h"
#include "exchange/json.h"
#include "exchange/jsonl.h"
#include "exchange/known.h"

enum { BATCH = 256 };

typedef struct id_pair { int64_t from, to; } id_pair;

typedef struct job {
    inferscale *is;
    const is_import_options *o;
    is_import *out;
    jsonl_record batch[BATCH];
    size_t n;
    inferscale_scope scope;      /* of the batch; strings borrowed from its first record or from the options */
    known_turns *known_turns;
    id_pair *map;                /* open addressing by from; from = 0 is free; a power of two */
    size_t map_cap, map_n;
} job;

/* ---- Turn ids of the file -> of the store -------------------------------------------------------------------------------- */

static id_pair *map_slot(id_pair *map, size_t cap, int64_t from)
{
    size_t i = (size_t)((uint64_t)from * 0x9e3779b97f4a7c15u >> 20) & (cap - 1);
    while (map[i].from && map[i].from != from) i = (i + 1) & (cap - 1);
    return &map[i];
}

static is_status map_put(job *j, int64_t from, int64_t to)
{
    id_pair *slot;
    if ((j->map_n + 1) * 2 > j->map_cap) {
        size_t cap = j->map_cap ? j->map_cap * 2 : 1024;
        id_pair *map = is_calloc(cap, sizeof *map);
        if (!map) return is_fail(INFERSCALE_E_NOMEM, "out of memory; close other programs and try again");
        for (size_t i = 0; i < j->map_cap; i++)
            if (j->map[i].from) *map_slot(map, cap, j->map[i].from) = j->map[i];
        is_free(j->map);
        j->map = map;
        j->map_cap = cap;
    }
    slot = map_slot(j->map, j->map_cap, from);
    if (!slot->from) j->map_n++;
    *slot = (id_pair){ from, to };
    return INFERSCALE_OK;
}

static int64_t map_get(const job *j, int64_t from) { return j->map_cap ? map_slot(j->map, j->map_cap, from)->to : 0; }

/* ---- Scopes -------------------------------------------------------------------------------------------------------------- */

static const char *pick(const char *first, const char *second)
{
    return first && *first ? first : second && *second ? second : NULL;
}

/* The owner is the first of user, agent, run, app: a line that names an earlier one than the given owner's would be another's. */
static is_status check_owner(const job *j, const jsonl_record *r)
{
    const inferscale_scope *g = &j->o->scope;
    const char *const given[] = { g->user, g->agent, g->run }, *const said[] = { r->user, r->agent, r->run };
    static const char *const names[] = { "user", "agent", "run" };

    for (size_t i = 0; j->o->bound && i < 3 && !(given[i] && *given[i]); i++)
        if (said[i] && *said[i])
            return is_fail(INFERSCALE_E_DENIED, "line %zu: \"%s\" would make this another owner's; take it out of the line", r->line, names[i]);
    return INFERSCALE_OK;
}

static inferscale_scope scope_of(const job *j, const jsonl_record *r)
{
    const inferscale_scope *g = &j->o->scope;
    inferscale_scope s = { .tenant = pick(g->tenant, NULL), .user = pick(g->user, r->user), .agent = pick(g->agent, r->agent),
                           .run = pick(g->run, r->run), .app = pick(g->app, r->app) };
    if (!s.user && !s.agent && !s.run && !s.app) s.user = j->o->nobody;
    return s;
}

static bool same(const char *a, const char *b) { return a == b || (a && b && strcmp(a, b) == 0); }

static bool same_scope(const inferscale_scope *a, const inferscale_scope *b)
{
    return same(a->tenant, b->tenant) && same(a->user, b->user) && same(a->agent, b->agent) && same(a->run, b->run) &&
           same(a->app, b->app);
}

static void note_scope(job *j, const inferscale_scope *s)
{
    is_import *o = j->out;
    for (size_t i = 0; i < o->n_scopes; i++)
        if (same_scope(&o->scopes[i], s)) return;
    inferscale_scope *more = is_realloc(o->scopes, (o->n_scopes + 1) * sizeof *more);
    if (!more) return; /* only means that this scope is encoded later */
    o->scopes = more;
    more[o->n_scopes++] = (inferscale_scope){ is_strdup(s->tenant), is_strdup(s->user), is_strdup(s->agent), is_strdup(s->run),
                                              is_strdup(s->app) };
}

/* ---- Batches ------------------------------------------------------------------------------------------------------------- */

static is_status store_facts(job *j, size_t from, size_t n)
{
    inferscale_fact facts[BATCH] = { { 0 } };
    inferscale_event events[BATCH] = { { 0 } };
    for (size_t i = 0; i < n; i++) {
        const jsonl_record *r = &j->batch[from + i];
        facts[i] = (inferscale_fact){ .text = r->text,
                                      .event_time = r->event_time,
                                      .valid_from = r->valid_from,
                                      .valid_to = r->valid_to,
                                      .expires = r->expires,
                                      .metadata = r->metadata,
                                      .undated = r->undated,
                                      .source_turn = r->source_turn ? map_get(j, r->source_turn) : 0 };
    }
    IS_TRY(inferscale_remember(j->is, &j->scope, facts, n, events));
    for (size_t i = 0; i < n; i++) {
        if (j->batch[from + i].pinned) IS_TRY(inferscale_pin(j->is, &j->scope, events[i].id, 1));
        is_import_count(j->out, &events[i]);
    }
    return INFERSCALE_OK;
}

void is_import_count(is_import *out, const inferscale_event *e)
{
    if (e->event == INFERSCALE_EVENT_ADD) out->facts++;
    else out->known++;
    out->dated += e->event == INFERSCALE_EVENT_UPDATE;
    out->kept += e->kept != 0;
    json_array_append_new(out->events, is_event_json(e));
}

static inferscale_turn turn_of(const jsonl_record *r)
{
    return (inferscale_turn){ .conversation = r->conversation, .speaker = r->speaker, .text = r->text, .external_id = r->external_id,
                              .time = r->time, .undated = r->undated };
}

/* True, and noted, if the turn is in the store already. */
static is_status find_known(job *j, const inferscale_scope *scope, const jsonl_record *r, bool *known)
{
    inferscale_turn turn = turn_of(r);
    int64_t id = 0;
    *known = false;
    if (r->kind != JSONL_TURN) return INFERSCALE_OK;
    IS_TRY(known_take(j->known_turns, j->is, scope, &turn, &id));
    *known = id != 0;
    if (!id) return INFERSCALE_OK;
    j->out->known_turns++;
    note_scope(j, scope);
    return r->id ? map_put(j, r->id, id) : INFERSCALE_OK;
}

static is_status store_turns(job *j, size_t from, size_t n)
{
    inferscale_turn turns[BATCH] = { { 0 } };
    int64_t ids[BATCH] = { 0 };
    for (size_t i = 0; i < n; i++) turns[i] = turn_of(&j->batch[from + i]);
    IS_TRY(inferscale_add_turns(j->is, &j->scope, turns, n, ids));
    j->out->turns += n;
    for (size_t i = 0; i < n; i++)
        if (j->batch[from + i].id) IS_TRY(map_put(j, j->batch[from + i].id, ids[i]));
    return INFERSCALE_OK;
}

static is_status store_some(job *j, size_t from, size_t n)
{
    return j->batch[0].kind == JSONL_FACT ? store_facts(j, from, n) : store_turns(j, from, n);
}

/* Stores the batch. If the library refuses it, the records go one by one, so that the line is known and all before it are
 * stored. */
static is_status flush(job *j)
{
    is_status st = INFERSCALE_OK;
    size_t n = j->n, i = 0;
    j->n = 0;
    if (n == 0) return INFERSCALE_OK;
    st = store_some(j, 0, n);
    if (st == INFERSCALE_E_INVALID && n > 1)
        for (st = INFERSCALE_OK; i < n && st == INFERSCALE_OK; i++) st = store_some(j, i, 1);
    if (st != INFERSCALE_OK)
        j->out->failed_line = j->batch[i ? i - 1 : 0].line;
    note_scope(j, &j->scope);
    for (i = 0; i < n; i++) jsonl_record_free(&j->batch[i]);
    return st;
}

/* Takes the record. */
static is_status add(job *j, jsonl_record *r)
{
    inferscale_scope scope = scope_of(j, r);
    bool known = false;
    is_status found = check_owner(j, r);
    if (found == INFERSCALE_OK && !scope.user && !scope.agent && !scope.run && !scope.app)
        found = is_fail(INFERSCALE_E_INVALID, "line %zu names no owner (user, agent, run or app), and none was given for all", r->line);
    if (found == INFERSCALE_OK) found = find_known(j, &scope, r, &known);
    if (known || found != INFERSCALE_OK) {
        if (found != INFERSCALE_OK) j->out->failed_line = r->line;
        jsonl_record_free(r);
        return found;
    }
    if (j->n == BATCH || (j->n && (j->batch[0].kind != r->kind || !same_scope(&scope, &j->scope)))) {
        is_status st = flush(j);
        if (st != INFERSCALE_OK) {
            jsonl_record_free(r);
            return st;
        }
    }
    if (r->kind == JSONL_FACT && r->source_turn && map_get(j, r->source_turn) == 0) {
        is_status st =
            is_fail(INFERSCALE_E_PARSE, "line %zu: source_turn %lld is not the id of a turn in an earlier line of this file",
                    r->line, (long long)r->source_turn);
        j->out->failed_line = r->line;
        jsonl_record_free(r);
        return st;
    }
    if (j->n == 0) j->scope = scope;
    j->batch[j->n++] = *r;
    return INFERSCALE_OK;
}

static is_status run(job *j, FILE *f)
{
    jsonl_reader *r = is_malloc(sizeof *r);
    is_status st = INFERSCALE_OK;
    bool end = false;
    if (!r) return is_fail(INFERSCALE_E_NOMEM, "out of memory; close other programs and try again");
    jsonl_reader_init(r, f);
    while (st == INFERSCALE_OK) {
        jsonl_record rec;
        st = jsonl_next(r, &rec, &end);
        if (st == INFERSCALE_OK && end) break;
        if (st != INFERSCALE_OK) {
            j->out->failed_line = st == INFERSCALE_E_PARSE && r->line == 0 ? 1 : r->line;
        } else if (rec.kind == JSONL_HEAD) {
            jsonl_record_free(&rec);
        } else {
            st = add(j, &rec);
        }
        if (j->o->on_progress && j->o->on_progress(j->o->progress_ctx, r->line, 0, NULL) && st == INFERSCALE_OK) {
            st = is_fail(INFERSCALE_E_CANCELLED, "interrupted; import again from line %zu on", r->line + 1);
            j->out->failed_line = r->line + 1;
        }
    }
    jsonl_reader_free(r);
    is_free(r);
    return st;
}

/* The last sentence, with the line in front unless it is there. */
static void keep_error(is_import *out)
{
    const char *e = inferscale_error();
    if (strncmp(e, "line ", 5) == 0)
        snprintf(out->error, sizeof out->error, "%s", e);
    else
        snprintf(out->error, sizeof out->error, "line %zu: %s", out->failed_line, e);
}

void is_import_run(inferscale *is, const is_import_options *options, FILE *f, is_import *out)
{
    job *j = is_calloc(1, sizeof *j);
    is_status st, last;
    memset(out, 0, sizeof *out);
    out->events = json_array();
    if (j) j->known_turns = known_new();
    if (!j || !out->events || !j->known_turns) {
        st = is_fail(INFERSCALE_E_NOMEM, "out of memory; close other programs and try again");
        out->failed_line = 1;
        keep_error(out);
    } else {
        j->is = is;
        j->o = options;
        j->out = out;
        st = run(j, f);
        if (st != INFERSCALE_OK) keep_error(out);
        last = flush(j); /* what came before a bad line is stored */
        if (last != INFERSCALE_OK) {
            st = last;
            keep_error(out);
        }
    }
    out->status = st;
    if (j) known_free(j->known_turns);
    if (j) is_free(j->map);
    is_free(j);
}

void is_import_free(is_import *out)
{
    for (size_t i = 0; i < out->n_scopes; i++) {
        const inferscale_scope *s = &out->scopes[i];
        const char *const strings[] = { s->tenant, s->user, s->agent, s->run, s->app };
        for (size_t k = 0; k < 5; k++) is_free((void *)(uintptr_t)strings[k]);
    }
    is_free(out->scopes);
    json_decref(out->events);
    memset(out, 0, sizeof *out);
}
