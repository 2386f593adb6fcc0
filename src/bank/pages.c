/* pages.c - the books of pages: which facts a page policy encoded together, lane by lane, in which order.
 *
 * A page is laid out here before anything is computed: a crash in between leaves facts that have a place and no segment, which
 * is what the next encoding looks for. Places of old versions mean nothing and are swept when the page is written to. */
#include <stdint.h>
#include <string.h>

#include "bank/sql.h"
#include "base/clock.h"
#include "base/mem.h"

void is_page_free(is_page *page)
{
    is_free(page->facts);
    *page = (is_page){ 0 };
}

static is_status add_fact(is_page *page, const is_page_fact *fact)
{
    if ((page->n & (page->n - 1)) == 0) { /* capacity: the next power of two */
        is_page_fact *grown = is_realloc(page->facts, (page->n ? page->n * 2 : 1) * sizeof *grown);

        if (!grown) return is_fail(INFERSCALE_E_NOMEM, "no memory for a page of facts; free some memory and try again");
        page->facts = grown;
    }
    page->facts[page->n++] = *fact;
    return INFERSCALE_OK;
}

/* What is still true of the page's places, in order. */
static is_status read_facts(is_bank *b, const is_partition *p, is_page *page)
{
    is_status st = INFERSCALE_OK, ended;
    sql q = sql_open(b, "SELECT f.item_id, f.version, f.lead, EXISTS(SELECT 1 FROM fact_versions v WHERE v.partition_id = ?1 AND"
                        " v.item_id = f.item_id AND v.version = f.version AND ((v.expires <> 0 AND v.expires <= ?3) OR"
                        " (v.valid_to <> 0 AND v.valid_to <= ?3))) FROM page_facts f CROSS JOIN items i ON i.partition_id ="
                        " f.partition_id AND i.id = f.item_id AND i.version = f.version WHERE f.page_id = ?2 AND"
                        " f.partition_id = ?1 ORDER BY f.slot");

    sql_i64(&q, p->id);
    sql_i64(&q, page->id);
    sql_i64(&q, is_now_epoch());
    while (st == INFERSCALE_OK && sql_row(&q)) {
        is_page_fact fact = { .dep = { sqlite3_column_int64(q.stmt, 0), sqlite3_column_int(q.stmt, 1) },
                              .lead = sqlite3_column_int(q.stmt, 2) != 0, .over = sqlite3_column_int(q.stmt, 3) != 0 };

        st = add_fact(page, &fact);
        page->n_lead += st == INFERSCALE_OK && fact.lead;
    }
    if (st != INFERSCALE_OK) q.rc = SQLITE_OK;
    ended = sql_end(&q);
    return st != INFERSCALE_OK ? st : ended;
}

/* The page in the statement's first row (id, lane, open), with its facts; E_NOTFOUND without a row. */
static is_status read_page(is_bank *b, const is_partition *p, sql *q, is_page *out)
{
    bool found = sql_row(q);

    if (found) {
        out->id = sqlite3_column_int64(q->stmt, 0);
        out->lane = (uint32_t)sqlite3_column_int64(q->stmt, 1);
        out->open = sqlite3_column_int(q->stmt, 2) != 0;
    }
    IS_TRY(sql_end(q));
    if (!found) return is_fail(INFERSCALE_E_NOTFOUND, "there is no such page; lay one out");
    return read_facts(b, p, out);
}

is_status is_bank_lane(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], const char *policy,
                       uint32_t lane, is_page *out)
{
    is_status st;
    sql q;

    *out = (is_page){ 0 };
    IS_TRY(bank_read_begin(b));
    q = sql_open(b, "SELECT id, lane, open FROM pages WHERE partition_id = ?1 AND fingerprint = ?2 AND policy = ?3 AND lane ="
                    " ?4 ORDER BY id DESC LIMIT 1");
    sql_i64(&q, p->id);
    sql_blob(&q, fingerprint, IS_HASH_BYTES);
    sql_text(&q, policy);
    sql_i64(&q, lane);
    st = bank_read_end(b, read_page(b, p, &q, out));
    if (st != INFERSCALE_OK) is_page_free(out);
    return st;
}

/* The page where a fact's version has its own place. The lock is held. */
static is_status place_of(is_bank *b, const is_partition *p, const uint8_t *fingerprint, const char *policy, int64_t item,
                          int version, int64_t *page)
{
    is_status st;
    sql q = sql_open(b, "SELECT f.page_id FROM page_facts f INDEXED BY page_facts_by_item CROSS JOIN pages g ON g.id ="
                        " f.page_id WHERE f.partition_id = ?1 AND f.item_id = ?2 AND f.version = ?3 AND f.lead = 0 AND"
                        " g.fingerprint = ?4 AND g.policy = ?5 ORDER BY f.page_id LIMIT 1");

    sql_i64(&q, p->id);
    sql_i64(&q, item);
    sql_i64(&q, version);
    sql_blob(&q, fingerprint, IS_HASH_BYTES);
    sql_text(&q, policy);
    *page = sql_one_i64(&q, 0, &st);
    return st;
}

is_status is_bank_page_of(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], const char *policy,
                          int64_t fact_id, int version, is_page *out)
{
    int64_t page = 0;
    is_status st;

    *out = (is_page){ 0 };
    IS_TRY(bank_read_begin(b));
    st = place_of(b, p, fingerprint, policy, fact_id, version, &page);
    if (st == INFERSCALE_OK) {
        sql q = sql_open(b, "SELECT id, lane, open FROM pages WHERE partition_id = ?1 AND id = ?2");

        sql_i64(&q, p->id);
        sql_i64(&q, page);
        st = read_page(b, p, &q, out);
    }
    st = bank_read_end(b, st);
    if (st != INFERSCALE_OK) is_page_free(out);
    return st;
}

is_status is_bank_paged(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], const char *policy,
                        size_t *n_facts)
{
    is_status st;
    sql q;

    *n_facts = 0;
    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT count(*) FROM pages g CROSS JOIN page_facts f ON f.page_id = g.id AND f.lead = 0 WHERE"
                    " g.partition_id = ?1 AND g.fingerprint = ?2 AND g.policy = ?3");
    sql_i64(&q, p->id);
    sql_blob(&q, fingerprint, IS_HASH_BYTES);
    sql_text(&q, policy);
    *n_facts = (size_t)sql_one_i64(&q, 0, &st);
    bank_unlock(b);
    return st;
}

/* ---- Writing ------------------------------------------------------------------------------------------------------------- */

static is_status sweep(is_bank *b, const is_partition *p, int64_t page)
{
    sql q = sql_open(b, "DELETE FROM page_facts WHERE page_id = ?2 AND partition_id = ?1 AND NOT EXISTS(SELECT 1 FROM items i"
                        " WHERE i.partition_id = ?1 AND i.id = page_facts.item_id AND i.version = page_facts.version)");

    sql_i64(&q, p->id);
    sql_i64(&q, page);
    return sql_run(&q, NULL);
}

static is_status append(is_bank *b, const is_partition *p, int64_t page, const is_dep *fact, bool lead)
{
    sql q;

    IS_TRY(bank_check_dep(b, p, fact->item_id, fact->version));
    q = sql_open(b, "INSERT INTO page_facts(partition_id, page_id, slot, item_id, version, lead) VALUES(?1, ?2, (SELECT"
                    " ifnull(max(slot), 0) + 1 FROM page_facts WHERE page_id = ?2), ?3, ?4, ?5)");
    sql_i64(&q, p->id);
    sql_i64(&q, page);
    sql_i64(&q, fact->item_id);
    sql_i64(&q, fact->version);
    sql_i64(&q, lead);
    return sql_run(&q, NULL);
}

/* The new page; the lane's pages before it take no more. Pages that forgetting emptied go on the way. */
static is_status turn_page(is_bank *b, const is_partition *p, const uint8_t *fingerprint, const char *policy, uint32_t lane,
                           int64_t *id)
{
    sql q = sql_open(b, "DELETE FROM pages WHERE partition_id = ?1 AND fingerprint = ?2 AND policy = ?3 AND lane = ?4 AND NOT"
                        " EXISTS(SELECT 1 FROM page_facts f WHERE f.page_id = pages.id AND f.lead = 0)");

    sql_i64(&q, p->id);
    sql_blob(&q, fingerprint, IS_HASH_BYTES);
    sql_text(&q, policy);
    sql_i64(&q, lane);
    IS_TRY(sql_run(&q, NULL));
    q = sql_open(b, "UPDATE pages SET open = 0 WHERE partition_id = ?1 AND fingerprint = ?2 AND policy = ?3 AND lane = ?4");
    sql_i64(&q, p->id);
    sql_blob(&q, fingerprint, IS_HASH_BYTES);
    sql_text(&q, policy);
    sql_i64(&q, lane);
    IS_TRY(sql_run(&q, NULL));
    q = sql_open(b, "INSERT INTO pages(partition_id, fingerprint, policy, lane) VALUES(?1, ?2, ?3, ?4)");
    sql_i64(&q, p->id);
    sql_blob(&q, fingerprint, IS_HASH_BYTES);
    sql_text(&q, policy);
    sql_i64(&q, lane);
    IS_TRY(sql_run(&q, NULL));
    *id = sqlite3_last_insert_rowid(b->db);
    return INFERSCALE_OK;
}

static is_status lay(is_bank *b, const is_partition *p, int64_t epoch, const uint8_t *fingerprint, const char *policy,
                     const is_page *page, int64_t *id)
{
    IS_TRY(bank_check_epoch(b, p, epoch));
    if (*id == 0) IS_TRY(turn_page(b, p, fingerprint, policy, page->lane, id));
    IS_TRY(sweep(b, p, *id));
    for (size_t i = 0; i < page->n; i++) {
        const is_page_fact *f = &page->facts[i];
        int64_t other = 0;

        if (!f->lead) IS_TRY(place_of(b, p, fingerprint, policy, f->dep.item_id, f->dep.version, &other));
        if (other)
            return is_fail(INFERSCALE_E_STALE, "fact %lld was laid out by another encoder meanwhile; look again",
                           (long long)f->dep.item_id);
        IS_TRY(append(b, p, *id, &f->dep, f->lead));
    }
    if (!page->open) {
        sql q = sql_open(b, "UPDATE pages SET open = 0 WHERE partition_id = ?1 AND id = ?2");

        sql_i64(&q, p->id);
        sql_i64(&q, *id);
        IS_TRY(sql_run(&q, NULL));
    }
    return INFERSCALE_OK;
}

is_status is_bank_lay_page(is_bank *b, const is_partition *p, int64_t epoch, const uint8_t fingerprint[IS_HASH_BYTES],
                           const char *policy, is_page *page)
{
    int64_t id = page->id;
    is_status st;

    IS_TRY(bank_begin(b));
    st = bank_end(b, lay(b, p, epoch, fingerprint, policy, page, &id));
    if (st == INFERSCALE_OK) page->id = id;
    return st;
}

/* ---- Rows that a page needs no more -------------------------------------------------------------------------------------- */

is_status bank_retire_name(is_bank *b, const is_partition *p, const uint8_t *name, is_names *stale)
{
    is_status st;
    int64_t used;
    sql q = sql_open(b, "SELECT 1 FROM segments WHERE partition_id = ?1 AND name = ?2");

    sql_i64(&q, p->id);
    sql_blob(&q, name, IS_HASH_BYTES);
    used = sql_one_i64(&q, 0, &st);
    if (st != INFERSCALE_OK || used) return st;
    q = sql_open(b, "INSERT INTO doomed(partition_id, name) VALUES(?1, ?2) ON CONFLICT DO NOTHING");
    sql_i64(&q, p->id);
    sql_blob(&q, name, IS_HASH_BYTES);
    IS_TRY(sql_run(&q, NULL));
    return bank_names_add(stale, name);
}

/* Which rows of a fact go. ?1 partition, ?2 fact, ?3 fingerprint, ?4 policy, ?5 name, ?6 others. */
#define OF_FACT " FROM segments WHERE partition_id = ?1 AND item_id = ?2 AND fingerprint = ?3"
#define RETIRED OF_FACT " AND policy = ?4 AND (name = ?5) <> ?6"
#define REPLACED                                                                                   \
    OF_FACT " AND outdated = 1 AND EXISTS(SELECT 1 FROM segments s JOIN items i ON"                \
    " i.partition_id = s.partition_id AND i.id = s.item_id AND i.version = s.version WHERE"        \
    " s.partition_id = ?1 AND s.item_id = ?2 AND s.fingerprint = ?3 AND s.policy = ?4"             \
    " AND s.outdated = 0)"

typedef struct which {
    const is_partition *p;
    const uint8_t *fingerprint, *name;
    const char *policy;
    int64_t fact_id;
    bool others;
} which;

/* name NULL: what is replaced. */
static sql open_which(is_bank *b, const which *w, const char *retired, const char *replaced)
{
    sql q = sql_open(b, w->name ? retired : replaced);

    sql_i64(&q, w->p->id);
    sql_i64(&q, w->fact_id);
    sql_blob(&q, w->fingerprint, IS_HASH_BYTES);
    sql_text(&q, w->policy);
    if (!w->name) return q;
    sql_blob(&q, w->name, IS_HASH_BYTES);
    sql_i64(&q, w->others);
    return q;
}

static is_status list_names(is_bank *b, const which *w, is_names *out)
{
    is_status st = INFERSCALE_OK, ended;
    sql q;

    *out = (is_names){ 0 };
    IS_TRY(bank_lock(b));
    q = open_which(b, w, "SELECT DISTINCT name" RETIRED, "SELECT DISTINCT name" REPLACED);
    while (st == INFERSCALE_OK && sql_row(&q)) {
        if (sqlite3_column_bytes(q.stmt, 0) == IS_HASH_BYTES) st = bank_names_add(out, sqlite3_column_blob(q.stmt, 0));
        else q.rc = SQLITE_CORRUPT;
    }
    if (st != INFERSCALE_OK) q.rc = SQLITE_OK;
    ended = sql_end(&q);
    bank_unlock(b);
    if (st == INFERSCALE_OK) st = ended;
    if (st != INFERSCALE_OK) is_names_free(out);
    return st;
}

static is_status take_out(is_bank *b, const which *w, is_names *stale)
{
    is_names names;
    is_status st;
    sql q;

    *stale = (is_names){ 0 };
    IS_TRY(list_names(b, w, &names));
    st = names.n ? bank_begin_lazy(b) : INFERSCALE_OK; /* the usual case: nothing to do */
    if (st != INFERSCALE_OK || names.n == 0) {
        is_names_free(&names);
        return st;
    }
    q = open_which(b, w, "DELETE" RETIRED, "DELETE" REPLACED);
    st = sql_run(&q, NULL);
    for (size_t i = 0; st == INFERSCALE_OK && i < names.n; i++)
        st = bank_retire_name(b, w->p, names.names[i], stale);
    st = bank_end_lazy(b, st);
    if (st != INFERSCALE_OK) is_names_free(stale);
    is_names_free(&names);
    return st;
}

is_status is_bank_retire(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], const char *policy,
                         int64_t fact_id, const uint8_t name[IS_HASH_BYTES], bool others, is_names *stale)
{
    const which w = { .p = p, .fingerprint = fingerprint, .name = name, .policy = policy,
                      .fact_id = fact_id, .others = others };

    return take_out(b, &w, stale);
}

is_status is_bank_retire_outdated(is_bank *b, const is_partition *p,
                                  const uint8_t fingerprint[IS_HASH_BYTES], const char *policy,
                                  int64_t fact_id, is_names *stale)
{
    const which w = { .p = p, .fingerprint = fingerprint, .policy = policy, .fact_id = fact_id };

    return take_out(b, &w, stale);
}
