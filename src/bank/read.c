/* read.c - reading what is remembered. */
#include <stdio.h>
#include <string.h>

#include "bank/sql.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/time.h"
#include "base/words.h"

/* ---- Rows ---------------------------------------------------------------------------------------------------------------- */

static const char *column(const sql *q, int i)
{
    return bank_given((const char *)sqlite3_column_text(q->stmt, i));
}

bool bank_read_item(sql *q, inferscale_item *out)
{
    sqlite3_stmt *s = q->stmt;
    const char *text = (const char *)sqlite3_column_text(s, 3);

    memset(out, 0, sizeof *out);
    if (!text) { /* an item without its version or turn, or no memory to convert it */
        q->rc = sqlite3_errcode(q->bank->db) == SQLITE_NOMEM ? SQLITE_NOMEM : SQLITE_CORRUPT;
        return false;
    }
    out->id = sqlite3_column_int64(s, 0);
    out->kind = sqlite3_column_int(s, 1);
    out->version = sqlite3_column_int(s, 2);
    out->text = text;
    out->event_time = is_time_of(sqlite3_column_int64(s, 4));
    out->write_time = sqlite3_column_int64(s, 5);
    if (out->kind == INFERSCALE_FACTS) out->valid_from = is_time_of(sqlite3_column_int64(s, 6));
    out->valid_to = sqlite3_column_int64(s, 7);
    out->expires = sqlite3_column_int64(s, 8);
    out->source_turn = sqlite3_column_int64(s, 9);
    out->metadata = column(q, 10);
    out->speaker = column(q, 11);
    out->conversation = column(q, 12);
    out->external_id = column(q, 13);
    out->user = column(q, 14);
    out->agent = column(q, 15);
    out->run = column(q, 16);
    out->app = column(q, 17);
    out->pinned = sqlite3_column_int(s, 18) != 0;
    out->withdrawn = sqlite3_column_int(s, 19) != 0;
    out->superseded_by = sqlite3_column_int64(s, 20);
    out->dated = sqlite3_column_int(s, 21) != 0;
    out->expired = out->expires != 0 && is_time_seconds(out->expires) <= is_now_epoch();
    return true;
}

/* All rows into the list; ends the statement. */
static is_status collect(sql *q, inferscale_list *list)
{
    is_status st = INFERSCALE_OK, ended;
    inferscale_item item;

    while (st == INFERSCALE_OK && sql_row(q)) {
        if (!bank_read_item(q, &item)) break;
        st = is_list_add(list, &item);
    }
    if (st != INFERSCALE_OK) q->rc = SQLITE_OK; /* keep the first sentence */
    ended = sql_end(q);
    return st != INFERSCALE_OK ? st : ended;
}

static is_status new_list(inferscale_list **out)
{
    *out = is_list_new();
    if (*out) return INFERSCALE_OK;
    (void)is_fail(INFERSCALE_E_NOMEM, "no memory for a list of items; free some memory and try again");
    return INFERSCALE_E_NOMEM;
}

/* The list is the caller's if st is OK, else gone. */
static is_status hand_over(is_status st, inferscale_list **out)
{
    if (st != INFERSCALE_OK) {
        inferscale_list_free(*out);
        *out = NULL;
    }
    return st;
}

static void reverse(inferscale_list *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        inferscale_item swap = l->items[i];

        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = swap;
    }
}

/* ---- Lists --------------------------------------------------------------------------------------------------------------- */

is_status is_bank_list(is_bank *b, const is_partition *p, const inferscale_scope *filter, int kinds, int64_t after_id,
                       size_t limit, inferscale_list **out)
{
    is_status st;
    sql q;

    IS_TRY(new_list(out));
    st = bank_lock(b);
    if (st != INFERSCALE_OK) return hand_over(st, out);
    q = sql_open(b, "SELECT " BANK_ITEM_COLUMNS BANK_FROM_CURRENT " WHERE i.partition_id = ?1 AND i.id > ?2 AND (i.kind & ?3) "
                 "<> 0 AND ?4 IN ('', i.agent) AND ?5 IN ('', i.run) AND ?6 IN ('', i.app) ORDER BY i.id LIMIT ?7");
    sql_i64(&q, p->id);
    sql_i64(&q, after_id);
    sql_i64(&q, kinds ? kinds : INFERSCALE_FACTS | INFERSCALE_TURNS);
    sql_text(&q, filter ? filter->agent : NULL);
    sql_text(&q, filter ? filter->run : NULL);
    sql_text(&q, filter ? filter->app : NULL);
    sql_i64(&q, limit && limit < INT64_MAX ? (int64_t)limit : -1);
    st = collect(&q, *out);
    bank_unlock(b);
    return hand_over(st, out);
}

is_status is_bank_get(is_bank *b, const is_partition *p, const int64_t *ids, size_t n, inferscale_list **out)
{
    is_status st;

    IS_TRY(new_list(out));
    st = bank_read_begin(b);
    if (st != INFERSCALE_OK) return hand_over(st, out);
    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++) {
        sql q = sql_open(b, "SELECT " BANK_ITEM_COLUMNS BANK_FROM_CURRENT " WHERE i.partition_id = ?1 AND i.id = ?2");

        sql_i64(&q, p->id);
        sql_i64(&q, ids[i]);
        st = collect(&q, *out);
    }
    return hand_over(bank_read_end(b, st), out);
}

is_status is_bank_get_versions(is_bank *b, const is_partition *p, const is_dep *versions, size_t n, inferscale_list **out)
{
    is_status st;

    IS_TRY(new_list(out));
    st = bank_read_begin(b);
    if (st != INFERSCALE_OK) return hand_over(st, out);
    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++) {
        sql q = sql_open(b, "SELECT " BANK_ITEM_COLUMNS " FROM items i LEFT JOIN fact_versions f ON f.partition_id = i.partition_id"
                         " AND f.item_id = i.id AND f.version = ?3" BANK_ITEM_JOINS " WHERE i.partition_id = ?1 AND i.id = ?2 AND"
                         " (i.kind = 2 OR f.version = ?3)");

        sql_i64(&q, p->id);
        sql_i64(&q, versions[i].item_id);
        sql_i64(&q, versions[i].version);
        st = collect(&q, *out);
    }
    return hand_over(bank_read_end(b, st), out);
}

static is_status holds_fact(is_bank *b, const is_partition *p, const is_dep *d, int64_t as_of, bool *holds)
{
    is_status st;
    sql q = sql_open(b, "SELECT 1 FROM items i JOIN fact_versions f ON f.partition_id = i.partition_id AND f.item_id = i.id"
                     " WHERE i.partition_id = ?1 AND i.id = ?2 AND f.version = ?3 AND (?4 <> 0 OR i.version = ?3) AND"
                     " (f.expires = 0 OR f.expires > ?5) AND (f.valid_to = 0 OR " BANK_INSTANT("f.valid_to") " > CASE ?4 WHEN 0"
                     " THEN ?5 ELSE " BANK_INSTANT("?4") " END)");

    sql_i64(&q, p->id);
    sql_i64(&q, d->item_id);
    sql_i64(&q, d->version);
    sql_i64(&q, as_of);
    sql_i64(&q, is_now_epoch());
    *holds = sql_one_i64(&q, 0, &st) != 0;
    return st;
}

static is_status holds_segment(is_bank *b, const is_partition *p, const uint8_t *name, bool *holds)
{
    is_status st;
    sql q = sql_open(b, "SELECT 1 FROM segments WHERE partition_id = ?1 AND name = ?2");

    sql_i64(&q, p->id);
    sql_blob(&q, name, IS_HASH_BYTES);
    *holds = sql_one_i64(&q, 0, &st) != 0;
    return st;
}

is_status is_bank_still_holds(is_bank *b, const is_partition *p, const is_dep *facts, size_t n, const is_names *segments,
                              int64_t as_of, bool *holds)
{
    is_status st = INFERSCALE_OK;

    *holds = true;
    IS_TRY(bank_read_begin(b));
    for (size_t i = 0; st == INFERSCALE_OK && *holds && i < n; i++) st = holds_fact(b, p, &facts[i], as_of, holds);
    for (size_t i = 0; st == INFERSCALE_OK && *holds && i < segments->n; i++)
        st = holds_segment(b, p, segments->names[i], holds);
    return bank_read_end(b, st);
}

is_status is_bank_history(is_bank *b, const is_partition *p, int64_t id, inferscale_list **out)
{
    is_status st;
    sql q;

    IS_TRY(new_list(out));
    st = bank_lock(b);
    if (st != INFERSCALE_OK) return hand_over(st, out);
    q = sql_open(b, "SELECT " BANK_ITEM_COLUMNS " FROM items i LEFT JOIN fact_versions f ON f.partition_id = i.partition_id AND"
                    " f.item_id = i.id" BANK_ITEM_JOINS " WHERE i.partition_id = ?1 AND i.id = ?2 ORDER BY f.version");
    sql_i64(&q, p->id);
    sql_i64(&q, id);
    st = collect(&q, *out);
    bank_unlock(b);
    if (st == INFERSCALE_OK && (*out)->n == 0)
        st = is_fail(INFERSCALE_E_NOTFOUND, "there is no item %lld in this memory; %s lists the ids", (long long)id, is_words(IS_CALL_LIST));
    return hand_over(st, out);
}

is_status is_bank_whose(is_bank *b, int64_t id, inferscale_owner *out)
{
    char *const names[] = { out->tenant, out->user, out->agent, out->run, out->app };
    bool found;
    is_status st;
    sql q;

    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT p.tenant, i.user, i.agent, i.run, i.app FROM items i JOIN partitions p ON p.id = i.partition_id WHERE i.id = ?1");
    sql_i64(&q, id);
    found = sql_row(&q);
    for (int i = 0; found && i < 5; i++) {
        const char *name = (const char *)sqlite3_column_text(q.stmt, i);

        if (!name) q.rc = sqlite3_errcode(b->db) == SQLITE_NOMEM ? SQLITE_NOMEM : SQLITE_CORRUPT;
        snprintf(names[i], sizeof out->tenant, "%s", bank_given(name));
    }
    st = sql_end(&q);
    bank_unlock(b);
    if (st != INFERSCALE_OK || !found) memset(out, 0, sizeof *out);
    if (st != INFERSCALE_OK || found) return st;
    return is_fail(INFERSCALE_E_NOTFOUND, "there is no item %lld in this store; %s lists the ids", (long long)id, is_words(IS_CALL_LIST));
}

/* ---- Neighbours: what the encoding policies put before a fact ------------------------------------------------------------ */

static is_status before(is_bank *b, const char *literal, const is_partition *p, int64_t id, size_t w, inferscale_list **out)
{
    is_status st;
    sql q;

    IS_TRY(new_list(out));
    st = bank_lock(b);
    if (st != INFERSCALE_OK) return hand_over(st, out);
    q = sql_open(b, literal);
    sql_i64(&q, p->id);
    sql_i64(&q, id);
    sql_i64(&q, w < INT64_MAX ? (int64_t)w : INT64_MAX);
    sql_i64(&q, is_now_epoch());
    st = collect(&q, *out);
    bank_unlock(b);
    if (st == INFERSCALE_OK) reverse(*out);
    return hand_over(st, out);
}

is_status is_bank_turns_before(is_bank *b, const is_partition *p, int64_t turn_id, size_t w, inferscale_list **out)
{
    return before(b, "SELECT " BANK_ITEM_COLUMNS " FROM turns t INDEXED BY turns_by_conversation CROSS JOIN items i ON"
                     " i.partition_id = t.partition_id AND i.id = t.item_id"
                     " CROSS JOIN conversations c ON c.id = t.conversation_id AND c.partition_id = t.partition_id"
                     " LEFT JOIN fact_versions f ON f.partition_id = i.partition_id AND f.item_id = i.id"
                     " AND f.version = i.version"
                     " WHERE t.partition_id = ?1 AND t.conversation_id ="
                     " (SELECT conversation_id FROM turns WHERE partition_id = ?1 AND item_id = ?2)"
                     " AND t.item_id < ?2 AND i.withdrawn = 0 AND ?4 <> 0 ORDER BY t.item_id DESC LIMIT ?3", p, turn_id, w, out);
}

is_status is_bank_facts_before(is_bank *b, const is_partition *p, int64_t fact_id, size_t w, inferscale_list **out)
{
    return before(b, "SELECT " BANK_ITEM_COLUMNS BANK_FROM_CURRENT " WHERE i.partition_id = ?1 AND i.kind = 1 AND i.id < ?2 AND"
                     " (f.expires = 0 OR f.expires > ?4) AND (f.valid_to = 0 OR f.valid_to > ?4) AND"
                     " EXISTS(SELECT 1 FROM items WHERE partition_id = ?1 AND id = ?2) ORDER BY i.id DESC LIMIT ?3",
                  p, fact_id, w, out);
}

/* ---- For the recall index ------------------------------------------------------------------------------------------------ */

/* Every row to each(), with its two columns after the item's; ends the statement. */
static is_status hand_items(sql *q, is_bank_each_fn each, void *ctx)
{
    is_status st = INFERSCALE_OK, ended;
    inferscale_item item;

    while (st == INFERSCALE_OK && sql_row(q)) {
        if (!bank_read_item(q, &item)) break;
        st = each(ctx, &item, column(q, BANK_N_ITEM_COLUMNS), column(q, BANK_N_ITEM_COLUMNS + 1));
    }
    if (st != INFERSCALE_OK) q->rc = SQLITE_OK;
    ended = sql_end(q);
    return st != INFERSCALE_OK ? st : ended;
}

is_status is_bank_each(is_bank *b, const is_partition *p, int64_t after_id, is_bank_each_fn each, void *ctx)
{
    is_status st;
    sql q;

    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT " BANK_ITEM_COLUMNS ", pt.speaker, pt.text" BANK_FROM_CURRENT
                    " LEFT JOIN turns pt ON pt.partition_id = i.partition_id AND pt.item_id = (SELECT max(x.item_id)"
                    " FROM turns x"
                    " WHERE x.partition_id = t.partition_id AND x.conversation_id = t.conversation_id"
                    " AND x.item_id < t.item_id AND NOT EXISTS(SELECT 1 FROM items w WHERE w.partition_id = x.partition_id AND"
                    " w.id = x.item_id AND w.withdrawn = 1))"
                    " WHERE i.partition_id = ?1 AND i.id > ?2 AND i.withdrawn = 0 ORDER BY i.id");
    sql_i64(&q, p->id);
    sql_i64(&q, after_id);
    st = hand_items(&q, each, ctx);
    bank_unlock(b);
    return st;
}

is_status is_bank_each_at(is_bank *b, const is_partition *p, int64_t at, is_bank_each_fn each, void *ctx)
{
    is_status st;
    sql q;

    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT " BANK_ITEM_COLUMNS ", pt.speaker, pt.text FROM items i LEFT JOIN fact_versions f ON f.partition_id ="
                    " i.partition_id AND f.item_id = i.id AND f.version = (SELECT max(v.version) FROM fact_versions v WHERE"
                    " v.partition_id = i.partition_id AND v.item_id = i.id AND v.valid_from <= ?2 AND (v.valid_to = 0 OR "
                    BANK_INSTANT("v.valid_to") " > ?2))" BANK_ITEM_JOINS
                    " LEFT JOIN turns pt ON pt.partition_id = i.partition_id AND pt.item_id = (SELECT max(x.item_id)"
                    " FROM turns x WHERE x.partition_id = t.partition_id AND x.conversation_id = t.conversation_id"
                    " AND x.item_id < t.item_id AND NOT EXISTS(SELECT 1 FROM items w WHERE w.partition_id = x.partition_id AND"
                    " w.id = x.item_id AND w.withdrawn = 1))"
                    " WHERE i.partition_id = ?1 AND i.withdrawn = 0 AND (i.kind = 2 OR f.version IS NOT NULL) ORDER BY i.id");
    sql_i64(&q, p->id);
    sql_i64(&q, is_time_seconds(at));
    st = hand_items(&q, each, ctx);
    bank_unlock(b);
    return st;
}

is_status is_bank_differs_at(is_bank *b, const is_partition *p, int64_t at, int64_t **ids, size_t *n)
{
    is_status st;
    sql q;

    *ids = NULL;
    *n = 0;
    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT DISTINCT f.item_id FROM fact_versions f CROSS JOIN items i ON i.partition_id = f.partition_id AND i.id ="
                    " f.item_id CROSS JOIN fact_versions c ON c.partition_id = f.partition_id AND c.item_id = f.item_id AND"
                    " c.version = i.version WHERE f.partition_id = ?1 AND f.version < i.version AND f.valid_from <= ?2 AND"
                    " (f.valid_to = 0 OR " BANK_INSTANT("f.valid_to") " > ?2) AND NOT (c.valid_from <= ?2 AND (c.valid_to = 0 OR "
                    BANK_INSTANT("c.valid_to") " > ?2)) ORDER BY f.item_id");
    sql_i64(&q, p->id);
    sql_i64(&q, is_time_seconds(at));
    st = bank_collect_ids(&q, ids, n);
    bank_unlock(b);
    return st;
}

/* Members are equal if their types and values are; 1 and 1.0 are the same number, nested objects are compared as written. */
static is_status match_one(is_bank *b, const is_partition *p, const char *metadata, int64_t id, int version, bool *keep)
{
    is_status st;
    sql q = sql_open(b, "SELECT NOT EXISTS(SELECT 1 FROM json_each(json(?3)) w WHERE NOT EXISTS("
                        "SELECT 1 FROM json_each(ifnull(f.metadata, '{}')) m WHERE m.key = w.key AND m.value IS w.value AND"
                        " (m.type = w.type OR (m.type IN ('integer', 'real') AND w.type IN ('integer', 'real')))))"
                        " FROM items i LEFT JOIN fact_versions f ON f.partition_id = i.partition_id AND f.item_id = i.id AND"
                        " f.version = ifnull(nullif(?4, 0), i.version) WHERE i.partition_id = ?1 AND i.id = ?2");

    sql_i64(&q, p->id);
    sql_i64(&q, id);
    sql_text(&q, metadata);
    sql_i64(&q, version);
    *keep = sql_one_i64(&q, 0, &st) != 0;
    return st;
}

/* versions NULL: the current ones of ids. */
static is_status match_all(is_bank *b, const is_partition *p, const char *metadata, const int64_t *ids, const is_dep *versions,
                           size_t n, bool *keep)
{
    is_status st;

    if (n) memset(keep, 0, n * sizeof *keep);
    if (!metadata || !*metadata) metadata = "{}";
    IS_TRY(bank_read_begin(b));
    st = bank_check_metadata(b, "filter", SIZE_MAX, metadata);
    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++)
        st = match_one(b, p, metadata, versions ? versions[i].item_id : ids[i], versions ? versions[i].version : 0, &keep[i]);
    return bank_read_end(b, st);
}

is_status is_bank_match_metadata(is_bank *b, const is_partition *p, const char *metadata, const int64_t *ids, size_t n,
                                 bool *keep)
{
    return match_all(b, p, metadata, ids, NULL, n, keep);
}

is_status is_bank_match_versions(is_bank *b, const is_partition *p, const char *metadata, const is_dep *versions, size_t n,
                                 bool *keep)
{
    return match_all(b, p, metadata, NULL, versions, n, keep);
}
