/* turns.c - conversations and their turns. */
#include <string.h>

#include "bank/sql.h"
#include "base/clock.h"
#include "base/time.h"

static const char *or_default(const char *s, const char *fallback)
{
    return s && *s ? s : fallback;
}

static is_status check_turn(const inferscale_turn *t, size_t which)
{
    IS_TRY(bank_check_text("turn", which, t->text));
    if (!is_time_sound(t->time))
        return is_fail(INFERSCALE_E_INVALID, "%s: time lies outside the years 0 to 9999; give seconds since 1970",
                       bank_what("turn", which, (char[48]){ 0 }));
    IS_TRY(bank_check_name("turn", which, "conversation name", t->conversation));
    IS_TRY(bank_check_name("turn", which, "speaker", t->speaker));
    return bank_check_name("turn", which, "external id", t->external_id);
}

static is_status conversation_id(is_bank *b, const is_partition *p, const char *name, int64_t *id)
{
    is_status st;
    sql q = sql_open(b, "INSERT INTO conversations(partition_id, name) VALUES(?1, ?2) ON CONFLICT DO NOTHING");

    sql_i64(&q, p->id);
    sql_text(&q, name);
    IS_TRY(sql_run(&q, NULL));
    q = sql_open(b, "SELECT id FROM conversations WHERE partition_id = ?1 AND name = ?2");
    sql_i64(&q, p->id);
    sql_text(&q, name);
    *id = sql_one_i64(&q, 0, &st);
    return st;
}

/* A turn that the application named and that is here already, word for word, where the writer finds it: importing twice adds
 * nothing. */
static int64_t find_same(is_bank *b, const is_partition *p, const inferscale_scope *scope, int64_t conversation,
                         const inferscale_turn *t, is_status *st)
{
    sql q;

    *st = INFERSCALE_OK;
    if (!*bank_given(t->external_id)) return 0;
    q = sql_open(b, "SELECT t.item_id FROM turns t INDEXED BY turns_by_external_id CROSS JOIN items i ON i.partition_id = "
                 "t.partition_id AND i.id = t.item_id WHERE t.partition_id = ?1 AND t.external_id = ?2"
                 " AND t.external_id <> '' AND t.conversation_id = ?3 AND t.speaker = ?4 AND t.text = ?5"
                 " AND ?6 IN ('', i.agent) AND ?7 IN ('', i.run) AND ?8 IN ('', i.app) ORDER BY t.item_id LIMIT 1");
    sql_i64(&q, p->id);
    sql_text(&q, t->external_id);
    sql_i64(&q, conversation);
    sql_text(&q, or_default(t->speaker, "user"));
    sql_text(&q, t->text);
    sql_text(&q, scope->agent);
    sql_text(&q, scope->run);
    sql_text(&q, scope->app);
    return sql_one_i64(&q, 0, st);
}

static is_status insert_turn(is_bank *b, const is_partition *p, const inferscale_scope *scope, int64_t conversation,
                             const inferscale_turn *t, int64_t now, int64_t *id)
{
    sql q = sql_open(b, "INSERT INTO items(partition_id, kind, version, user, agent, run, app) VALUES(?1, 2, 1, ?2, ?3, ?4, "
                     "?5)");

    sql_i64(&q, p->id);
    sql_text(&q, scope->user);
    sql_text(&q, scope->agent);
    sql_text(&q, scope->run);
    sql_text(&q, scope->app);
    IS_TRY(sql_run(&q, NULL));
    *id = b->last_given = sqlite3_last_insert_rowid(b->db);
    q = sql_open(b, "INSERT INTO turns(partition_id, item_id, conversation_id, speaker, text, external_id, time, write_time,"
                    " dated) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)");
    sql_i64(&q, p->id);
    sql_i64(&q, *id);
    sql_i64(&q, conversation);
    sql_text(&q, or_default(t->speaker, "user"));
    sql_text(&q, t->text);
    sql_text(&q, t->external_id);
    sql_i64(&q, is_time_given(t->time) ? is_time_seconds(t->time) : now);
    sql_i64(&q, now);
    sql_i64(&q, is_time_given(t->time) && !t->undated);
    return sql_run(&q, NULL);
}

static is_status add_one(is_bank *b, const is_partition *p, const inferscale_scope *scope, const inferscale_turn *t,
                         int64_t now, int64_t *id, bool *added)
{
    int64_t conversation = 0;
    is_status st;

    IS_TRY(conversation_id(b, p, or_default(t->conversation, "default"), &conversation));
    *id = find_same(b, p, scope, conversation, t, &st);
    *added = st == INFERSCALE_OK && *id == 0;
    return *added ? insert_turn(b, p, scope, conversation, t, now, id) : st;
}

is_status is_bank_add_turns(is_bank *b, const is_partition *p, const inferscale_scope *scope, const inferscale_turn *turns,
                            size_t n, int64_t *ids)
{
    int64_t now = is_now_epoch();
    bool any = false;
    is_status st;

    if (ids && n) memset(ids, 0, n * sizeof *ids);
    IS_TRY(bank_check_scope(scope));
    for (size_t i = 0; i < n; i++) IS_TRY(check_turn(&turns[i], i));
    IS_TRY(bank_begin(b));
    st = bank_need_partition(b, p);
    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++) {
        bool added = false;
        int64_t id = 0;

        st = add_one(b, p, scope, &turns[i], now, &id, &added);
        if (ids) ids[i] = id;
        any = any || added;
    }
    if (st == INFERSCALE_OK && any) st = bank_touch(b, p, false);
    st = bank_end(b, st);
    if (st != INFERSCALE_OK && ids && n) memset(ids, 0, n * sizeof *ids);
    return st;
}
