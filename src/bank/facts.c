/* facts.c - remembering facts and changing them. */
#include <stdint.h>
#include <string.h>

#include "bank/sql.h"
#include "base/clock.h"
#include "base/time.h"
#include "base/words.h"

/* A fact with its defaults filled in; times as the tables hold them (sql.h). */
typedef struct filled {
    const char *text, *metadata; /* metadata NULL = the caller's default */
    int64_t hash, event_time, write_time, valid_from, valid_to, expires, source_turn;
    bool dated;
} filled;

static is_status check_times(const inferscale_fact *f, const char *who)
{
    const struct { const char *name; int64_t t; } times[] = {
        { "event_time", f->event_time }, { "valid_from", f->valid_from }, { "valid_to", f->valid_to }, { "expires", f->expires },
    };

    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        if (!is_time_sound(times[i].t))
            return is_fail(INFERSCALE_E_INVALID, "%s: %s lies outside the years 0 to 9999; give seconds since 1970", who, times[i].name);
    return INFERSCALE_OK;
}

static int64_t or_none(int64_t t)
{
    return is_time_given(t) ? t : 0;
}

static is_status fill(const inferscale_fact *f, size_t which, int64_t now, filled *out)
{
    char who[48];

    IS_TRY(bank_check_text("fact", which, f->text));
    bank_what("fact", which, who);
    IS_TRY(check_times(f, who));
    *out = (filled){ .text = f->text, .metadata = f->metadata && *f->metadata ? f->metadata : NULL, .write_time = now,
                     .hash = (int64_t)is_checksum(f->text, strlen(f->text)),
                     .event_time = is_time_given(f->event_time) ? is_time_seconds(f->event_time) : now,
                     .valid_to = or_none(f->valid_to), .expires = or_none(f->expires), .source_turn = f->source_turn,
                     .dated = is_time_given(f->event_time) && !f->undated };
    /* An appointment is known before it happens: without a validity of its own a fact holds from when it was told. */
    out->valid_from = out->event_time < out->write_time ? out->event_time : out->write_time;
    if (is_time_given(f->valid_from)) out->valid_from = is_time_seconds(f->valid_from);
    if (out->valid_to && is_time_seconds(out->valid_to) < out->valid_from)
        return is_fail(INFERSCALE_E_INVALID, "%s would be valid to a time before it is valid from; swap or drop one of them",
                       who);
    if (out->source_turn < 0)
        return is_fail(INFERSCALE_E_INVALID, "%s: the source turn %lld is no id; give a turn's id, or 0", who,
                       (long long)out->source_turn);
    return INFERSCALE_OK;
}

static is_status check_source(is_bank *b, const is_partition *p, size_t which, int64_t turn)
{
    char who[48];
    is_status st;
    int64_t there;
    sql q;

    if (turn == 0) return INFERSCALE_OK;
    q = sql_open(b, "SELECT 1 FROM turns WHERE partition_id = ?1 AND item_id = ?2");
    sql_i64(&q, p->id);
    sql_i64(&q, turn);
    there = sql_one_i64(&q, 0, &st);
    if (st != INFERSCALE_OK || there) return st;
    return is_fail(INFERSCALE_E_INVALID, "%s: the source turn %lld is not a turn of this memory; add the turn first, or give 0",
                   bank_what("fact", which, who), (long long)turn);
}

/* The id of a current fact with the same text that makes this one superfluous, or 0: it must be found by whoever writes (the
 * attributes that the scope gives are equal) and live at least as long, or remembering again would be a lost write. */
static int64_t find_same(is_bank *b, const is_partition *p, const inferscale_scope *scope, const filled *f, is_status *st)
{
    sql q = sql_open(b, "SELECT i.id FROM fact_versions f INDEXED BY fact_versions_by_text CROSS JOIN items i ON "
                     "i.partition_id = f.partition_id AND i.id = f.item_id AND i.version = f.version"
                     " WHERE f.partition_id = ?1 AND f.text_hash = ?2 AND f.text = ?3 AND ?4 IN ('', i.agent)"
                     " AND ?5 IN ('', i.run) AND ?6 IN ('', i.app) AND (f.valid_to = 0 OR (?7 <> 0 AND " BANK_INSTANT("f.valid_to")
                     " >= " BANK_INSTANT("?7") ")) AND (f.expires = 0 OR (?8 <> 0 AND " BANK_INSTANT("f.expires") " >= "
                     BANK_INSTANT("?8") ")) ORDER BY i.id LIMIT 1");

    sql_i64(&q, p->id);
    sql_i64(&q, f->hash);
    sql_text(&q, f->text);
    sql_text(&q, scope->agent);
    sql_text(&q, scope->run);
    sql_text(&q, scope->app);
    sql_i64(&q, f->valid_to);
    sql_i64(&q, f->expires);
    return sql_one_i64(&q, 0, st);
}

/* Any current fact with this text, whoever wrote it and however long it holds; 0 = none. */
static int64_t find_equal(is_bank *b, const is_partition *p, const filled *f, is_status *st)
{
    sql q = sql_open(b, "SELECT i.id FROM fact_versions f INDEXED BY fact_versions_by_text CROSS JOIN items i ON "
                     "i.partition_id = f.partition_id AND i.id = f.item_id AND i.version = f.version"
                     " WHERE f.partition_id = ?1 AND f.text_hash = ?2 AND f.text = ?3 ORDER BY i.id LIMIT 1");

    sql_i64(&q, p->id);
    sql_i64(&q, f->hash);
    sql_text(&q, f->text);
    return sql_one_i64(&q, 0, st);
}

static is_status insert_version(is_bank *b, const is_partition *p, int64_t id, int64_t version, const filled *f)
{
    sql q = sql_open(b, "INSERT INTO fact_versions(partition_id, item_id, version, text, text_hash, event_time, write_time, "
                     "valid_from, valid_to, expires, source_turn, dated, metadata) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9,"
                     " ?10, ?11, ?12, ifnull(json(?13), ifnull((SELECT metadata FROM fact_versions WHERE partition_id = ?1"
                     " AND item_id = ?2 AND version = ?3 - 1), '{}')))");

    sql_i64(&q, p->id);
    sql_i64(&q, id);
    sql_i64(&q, version);
    sql_text(&q, f->text);
    sql_i64(&q, f->hash);
    sql_i64(&q, f->event_time);
    sql_i64(&q, f->write_time);
    sql_i64(&q, f->valid_from);
    sql_i64(&q, f->valid_to);
    sql_i64(&q, f->expires);
    sql_i64(&q, f->source_turn);
    sql_i64(&q, f->dated);
    sql_text_or_null(&q, f->metadata);
    return sql_run(&q, NULL);
}

static is_status insert_fact(is_bank *b, const is_partition *p, const inferscale_scope *scope, const filled *f, int64_t *id)
{
    sql q = sql_open(b, "INSERT INTO items(partition_id, kind, version, user, agent, run, app) VALUES(?1, 1, 1, ?2, ?3, ?4, "
                     "?5)");

    sql_i64(&q, p->id);
    sql_text(&q, scope->user);
    sql_text(&q, scope->agent);
    sql_text(&q, scope->run);
    sql_text(&q, scope->app);
    IS_TRY(sql_run(&q, NULL));
    *id = b->last_given = sqlite3_last_insert_rowid(b->db);
    return insert_version(b, p, *id, 1, f);
}

static is_status put_version(is_bank *b, const is_partition *p, int64_t id, int64_t version,
                             const filled *f, is_names *stale);

/* A known fact beside what was given for it. */
typedef struct known {
    filled f; /* text and metadata are not filled in */
    int64_t version;
    bool immutable, other_metadata; /* a member that was given is not the fact's */
} known;

static is_status read_known(is_bank *b, const is_partition *p, int64_t id, const filled *given,
                            known *out)
{
    sql q = sql_open(b, "SELECT f.version, f.event_time, f.valid_from, f.valid_to, f.expires,"
                     " f.source_turn, f.dated, ifnull(json_extract(f.metadata, '$.immutable'), 0),"
                     " ifnull(json_patch(f.metadata, ?3) <> f.metadata, 0) FROM items i"
                     " JOIN fact_versions f ON f.partition_id = i.partition_id AND"
                     " f.item_id = i.id AND f.version = i.version"
                     " WHERE i.partition_id = ?1 AND i.id = ?2");

    *out = (known){ .f = *given };
    sql_i64(&q, p->id);
    sql_i64(&q, id);
    sql_text_or_null(&q, given->metadata);
    if (sql_row(&q)) {
        out->version = sqlite3_column_int64(q.stmt, 0);
        out->f.event_time = sqlite3_column_int64(q.stmt, 1);
        out->f.valid_from = sqlite3_column_int64(q.stmt, 2);
        out->f.valid_to = sqlite3_column_int64(q.stmt, 3);
        out->f.expires = sqlite3_column_int64(q.stmt, 4);
        out->f.source_turn = sqlite3_column_int64(q.stmt, 5);
        out->f.dated = sqlite3_column_int(q.stmt, 6) != 0;
        out->immutable = sqlite3_column_int(q.stmt, 7) == 1;
        out->other_metadata = sqlite3_column_int(q.stmt, 8) != 0;
    }
    out->f.metadata = NULL; /* a new version keeps it */
    return sql_end(&q);
}

/* A known fact takes the date that it does not have, as a new version of the same text: what was
 * computed from the line without a date goes. What it has otherwise than given it keeps, and the
 * event says so. */
static is_status meet_known(is_bank *b, const is_partition *p, const filled *given, is_names *stale,
                            inferscale_event *event)
{
    known k;

    IS_TRY(read_known(b, p, event->id, given, &k));
    if (k.other_metadata) event->kept |= INFERSCALE_KEPT_METADATA;
    if (given->expires && given->expires != k.f.expires) event->kept |= INFERSCALE_KEPT_EXPIRES;
    if (!given->dated || (k.f.dated && k.f.event_time == given->event_time)) return INFERSCALE_OK;
    if (k.f.dated || k.immutable) {
        event->kept |= INFERSCALE_KEPT_DATE;
        return INFERSCALE_OK;
    }
    k.f.event_time = given->event_time;
    k.f.dated = true;
    if (given->valid_from < k.f.valid_from)
        k.f.valid_from = given->valid_from; /* it held from its date on */
    event->event = INFERSCALE_EVENT_UPDATE;
    return put_version(b, p, event->id, k.version, &k.f, stale);
}

static is_status add_one(is_bank *b, const is_partition *p, const inferscale_scope *scope, const inferscale_fact *fact,
                         size_t which, int64_t now, is_names *stale, inferscale_event *event)
{
    bool lifted = false;
    filled f;
    is_status st;

    IS_TRY(fill(fact, which, now, &f));
    IS_TRY(bank_check_metadata(b, "fact", which, f.metadata));
    IS_TRY(check_source(b, p, which, f.source_turn));
    event->event = INFERSCALE_EVENT_NONE;
    event->id = find_same(b, p, scope, &f, &st);
    if (st != INFERSCALE_OK) return st;
    if (event->id) return meet_known(b, p, &f, stale, event);
    event->event = INFERSCALE_EVENT_ADD;
    event->same_as = find_equal(b, p, &f, &st);
    if (st != INFERSCALE_OK) return st;
    IS_TRY(bank_lift_tombstone(b, p, f.text, &lifted)); /* told again by somebody who means it */
    event->again = lifted;
    return insert_fact(b, p, scope, &f, &event->id);
}

is_status is_bank_remember(is_bank *b, const is_partition *p, const inferscale_scope *scope,
                           const inferscale_fact *facts, size_t n, inferscale_event *events,
                           bool *changed, is_names *stale)
{
    int64_t now = is_now_epoch();
    size_t added = 0;
    is_status st;

    if (events && n) memset(events, 0, n * sizeof *events);
    if (stale) *stale = (is_names){ 0 };
    *changed = false;
    IS_TRY(bank_check_scope(scope));
    /* cheap refusals before the file is locked */
    for (size_t i = 0; i < n; i++) IS_TRY(bank_check_text("fact", i, facts[i].text));
    IS_TRY(bank_begin(b));
    st = bank_need_partition(b, p);
    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++) {
        inferscale_event event = { 0 };

        st = add_one(b, p, scope, &facts[i], i, now, stale, &event);
        if (events) events[i] = event;
        *changed |= event.event == INFERSCALE_EVENT_UPDATE;
        added += event.event == INFERSCALE_EVENT_ADD;
    }
    if (st == INFERSCALE_OK && added) st = bank_touch(b, p, false);
    st = bank_end(b, st);
    if (st == INFERSCALE_OK) return st;
    if (events && n) memset(events, 0, n * sizeof *events);
    if (stale) is_names_free(stale);
    *changed = false;
    return st;
}

is_status is_bank_add_facts(is_bank *b, const is_partition *p, const inferscale_scope *scope,
                            const inferscale_fact *facts, size_t n, inferscale_event *events)
{
    bool changed;

    return is_bank_remember(b, p, scope, facts, n, events, &changed, NULL);
}

/* ---- Changing ------------------------------------------------------------------------------------------------------------ */

static is_status drop_embeddings(is_bank *b, const is_partition *p, int64_t id)
{
    sql q = sql_open(b, "DELETE FROM embeddings WHERE partition_id = ?1 AND item_id = ?2");

    sql_i64(&q, p->id);
    sql_i64(&q, id);
    return sql_run(&q, NULL);
}

static is_status no_such_fact(int64_t id)
{
    return is_fail(INFERSCALE_E_NOTFOUND, "there is no fact %lld in this memory; %s lists the ids", (long long)id, is_words(IS_CALL_LIST));
}

/* E_NOTFOUND unless it is a fact of the partition. */
static is_status current_version(is_bank *b, const is_partition *p, int64_t id, int64_t *version)
{
    is_status st;
    sql q = sql_open(b, "SELECT version FROM items WHERE partition_id = ?1 AND id = ?2 AND kind = 1");

    sql_i64(&q, p->id);
    sql_i64(&q, id);
    *version = sql_one_i64(&q, 0, &st);
    return st != INFERSCALE_OK || *version ? st : no_such_fact(id);
}

/* What held from valid_from on holds until `at`, if it would hold longer; not at all if it began no earlier (it was corrected). */
static is_status close_version(is_bank *b, const is_partition *p, int64_t id, int64_t version, int64_t at)
{
    sql q = sql_open(b, "UPDATE fact_versions SET valid_to = ifnull(nullif(max(valid_from, ?4), 0), " BANK_TIME_ZERO ") WHERE"
                     " partition_id = ?1 AND item_id = ?2 AND version = ?3 AND (valid_to = 0 OR " BANK_INSTANT("valid_to") " > ?4)");

    sql_i64(&q, p->id);
    sql_i64(&q, id);
    sql_i64(&q, version);
    sql_i64(&q, at);
    return sql_run(&q, NULL);
}

/* The date of the version before, if the text is the same: a date belongs to the words that it was given with. */
static is_status keep_date(is_bank *b, const is_partition *p, int64_t id, int64_t version, filled *f)
{
    sql q = sql_open(b, "SELECT event_time, dated FROM fact_versions WHERE partition_id = ?1 AND item_id = ?2 AND version = ?3 AND"
                     " text = ?4");

    sql_i64(&q, p->id);
    sql_i64(&q, id);
    sql_i64(&q, version);
    sql_text(&q, f->text);
    if (sql_row(&q)) {
        f->event_time = sqlite3_column_int64(q.stmt, 0);
        f->dated = sqlite3_column_int(q.stmt, 1) != 0;
    }
    return sql_end(&q);
}

/* version: the current one. Everything made from it goes. */
static is_status put_version(is_bank *b, const is_partition *p, int64_t id, int64_t version,
                             const filled *f, is_names *stale)
{
    sql q;

    IS_TRY(bank_drop_dependents(b, p, id, stale));
    IS_TRY(drop_embeddings(b, p, id));
    IS_TRY(insert_version(b, p, id, version + 1, f));
    IS_TRY(close_version(b, p, id, version, f->valid_from));
    q = sql_open(b, "UPDATE items SET version = version + 1 WHERE partition_id = ?1 AND id = ?2");
    sql_i64(&q, p->id);
    sql_i64(&q, id);
    IS_TRY(sql_run(&q, NULL));
    return bank_touch(b, p, true);
}

/* A fact that another took the place of gets no new version: that would hold beside the other one. */
static is_status check_holds(is_bank *b, const is_partition *p, int64_t id)
{
    is_status st;
    int64_t by;
    sql q = sql_open(b, "SELECT superseded_by FROM items WHERE partition_id = ?1 AND id = ?2");

    sql_i64(&q, p->id);
    sql_i64(&q, id);
    by = sql_one_i64(&q, 0, &st);
    if (st != INFERSCALE_OK || !by) return st;
    return is_fail(INFERSCALE_E_INVALID, "fact %lld is superseded by fact %lld; update that one", (long long)id, (long long)by);
}

/* keep: no time was given. */
static is_status change(is_bank *b, const is_partition *p, int64_t id, filled *f, bool keep, is_names *stale)
{
    int64_t version = 0;

    IS_TRY(current_version(b, p, id, &version));
    IS_TRY(check_holds(b, p, id));
    if (keep) IS_TRY(keep_date(b, p, id, version, f));
    IS_TRY(bank_check_metadata(b, "fact", SIZE_MAX, f->metadata));
    IS_TRY(check_source(b, p, SIZE_MAX, f->source_turn));
    return put_version(b, p, id, version, f, stale);
}

is_status is_bank_update_fact(is_bank *b, const is_partition *p, int64_t id, const inferscale_fact *fact, is_names *stale)
{
    filled f;
    is_status st;

    if (stale) *stale = (is_names){ 0 };
    IS_TRY(fill(fact, SIZE_MAX, is_now_epoch(), &f));
    IS_TRY(bank_begin(b));
    st = bank_end(b, change(b, p, id, &f, !is_time_given(fact->event_time), stale));
    if (st != INFERSCALE_OK && stale) is_names_free(stale);
    return st;
}

static is_status check_supersede(is_bank *b, const is_partition *p, int64_t id, int64_t version, const filled *f)
{
    int64_t from = 0, by = 0;
    is_status st;
    sql q = sql_open(b, "SELECT f.valid_from, i.superseded_by FROM items i JOIN fact_versions f ON f.partition_id = i.partition_id"
                     " AND f.item_id = i.id AND f.version = i.version WHERE i.partition_id = ?1 AND i.id = ?2 AND i.version = ?3");

    sql_i64(&q, p->id);
    sql_i64(&q, id);
    sql_i64(&q, version);
    if (sql_row(&q)) {
        from = sqlite3_column_int64(q.stmt, 0);
        by = sqlite3_column_int64(q.stmt, 1);
    }
    st = sql_end(&q);
    if (st != INFERSCALE_OK) return st;
    if (by)
        return is_fail(INFERSCALE_E_INVALID, "fact %lld is superseded by fact %lld already; supersede that one", (long long)id,
                       (long long)by);
    if (f->valid_from < from)
        return is_fail(INFERSCALE_E_INVALID, "the new fact would hold from before fact %lld did; give a later valid_from, or "
                       "update the fact if it was never true", (long long)id);
    return INFERSCALE_OK;
}

/* The old fact's own KV stays, for questions about its time; what was computed with it in sight goes. */
static is_status supersede(is_bank *b, const is_partition *p, const inferscale_scope *scope, int64_t id, const filled *f,
                           int64_t *new_id, is_names *stale)
{
    int64_t version = 0;
    bool lifted;
    sql q;

    IS_TRY(current_version(b, p, id, &version));
    IS_TRY(check_supersede(b, p, id, version, f));
    IS_TRY(bank_check_metadata(b, "fact", SIZE_MAX, f->metadata));
    IS_TRY(check_source(b, p, SIZE_MAX, f->source_turn));
    IS_TRY(bank_lift_tombstone(b, p, f->text, &lifted));
    IS_TRY(insert_fact(b, p, scope, f, new_id));
    IS_TRY(close_version(b, p, id, version, f->valid_from));
    IS_TRY(bank_drop_onlookers(b, p, id, stale));
    q = sql_open(b, "UPDATE items SET superseded_by = ?3 WHERE partition_id = ?1 AND id = ?2");
    sql_i64(&q, p->id);
    sql_i64(&q, id);
    sql_i64(&q, *new_id);
    IS_TRY(sql_run(&q, NULL));
    return bank_touch(b, p, true);
}

is_status is_bank_supersede(is_bank *b, const is_partition *p, const inferscale_scope *scope, int64_t id,
                            const inferscale_fact *fact, int64_t *new_id, is_names *stale)
{
    filled f;
    is_status st;

    *new_id = 0;
    if (stale) *stale = (is_names){ 0 };
    IS_TRY(bank_check_scope(scope));
    IS_TRY(fill(fact, SIZE_MAX, is_now_epoch(), &f));
    IS_TRY(bank_begin(b));
    st = bank_end(b, supersede(b, p, scope, id, &f, new_id, stale));
    if (st == INFERSCALE_OK) return st;
    *new_id = 0;
    if (stale) is_names_free(stale);
    return st;
}

/* ---- Pins ---------------------------------------------------------------------------------------------------------------- */

static is_status pin(is_bank *b, const is_partition *p, int64_t id, bool pinned)
{
    int64_t version, others;
    is_status st;
    sql q;

    IS_TRY(current_version(b, p, id, &version));
    q = sql_open(b, "SELECT count(*) FROM items WHERE partition_id = ?1 AND pinned = 1 AND id <> ?2");
    sql_i64(&q, p->id);
    sql_i64(&q, id);
    others = sql_one_i64(&q, 0, &st);
    if (st != INFERSCALE_OK) return st;
    if (pinned && others >= INFERSCALE_PINNED_MAX)
        return is_fail(INFERSCALE_E_FULL, "%d facts are pinned already, and no more can be; unpin one first",
                       INFERSCALE_PINNED_MAX);
    q = sql_open(b, "UPDATE items SET pinned = ?3 WHERE partition_id = ?1 AND id = ?2");
    sql_i64(&q, p->id);
    sql_i64(&q, id);
    sql_i64(&q, pinned);
    return sql_run(&q, NULL);
}

is_status is_bank_pin(is_bank *b, const is_partition *p, int64_t id, bool pinned)
{
    IS_TRY(bank_begin(b));
    return bank_end(b, pin(b, p, id, pinned));
}

is_status is_bank_pinned(is_bank *b, const is_partition *p, int64_t **ids, size_t *n)
{
    is_status st;
    sql q;

    *ids = NULL;
    *n = 0;
    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT id FROM items WHERE partition_id = ?1 AND pinned = 1 ORDER BY id");
    sql_i64(&q, p->id);
    st = bank_collect_ids(&q, ids, n);
    bank_unlock(b);
    return st;
}
