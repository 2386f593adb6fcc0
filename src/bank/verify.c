/* verify.c - is the bank sound? SQLite's own checks, then what the tables must say of one another. Each check is one statement that
 * finds what is wrong and says it in a sentence; what belongs to a view can be dropped, because it is made again. */
#include <stdio.h>
#include <string.h>

#include "bank/maintain.h"
#include "bank/sql.h"
#include "bank/vfs.h"
#include "base/mem.h"

typedef struct verify {
    is_bank *b;
    bool repair, damaged; /* damaged: SQLite cannot read it; later findings mean nothing */
    is_bank_problem_fn each;
    void *ctx;
    is_names *stale;
} verify;

static is_status report(verify *v, const char *kind, const char *what, bool repaired)
{
    return v->each(v->ctx, kind, what, repaired);
}

static const char *text_at(const sql *q, int column)
{
    return bank_given((const char *)sqlite3_column_text(q->stmt, column));
}

/* Ends a statement of a check. That the file is damaged is an answer. */
static is_status end_check(verify *v, sql *q, is_status st)
{
    is_status ended;

    if (st != INFERSCALE_OK) q->rc = SQLITE_OK;
    ended = sql_end(q);
    if (st != INFERSCALE_OK || ended != INFERSCALE_E_CORRUPT) return st != INFERSCALE_OK ? st : ended;
    if (v->damaged) return INFERSCALE_OK;
    v->damaged = true;
    return report(v, "bank-damaged", is_error(), false);
}

/* ---- SQLite's own -------------------------------------------------------------------------------------------------------- */

static bool about_index(const char *line)
{
    return strstr(line, "missing from index") || strstr(line, "wrong # of entries in index") ||
           strstr(line, "non-unique entry in index") || strstr(line, "NULL value in");
}

/* *n = findings; *only_indexes: making the indexes anew would mend them all. */
static is_status integrity(verify *v, bool quiet, bool repaired, size_t *n, bool *only_indexes)
{
    const unsigned failed = bank_failed_reads();
    is_status st = INFERSCALE_OK;
    sql q = sql_once(v->b, "PRAGMA integrity_check(100)");

    *n = 0;
    *only_indexes = true;
    while (st == INFERSCALE_OK && sql_row(&q)) {
        const char *line = text_at(&q, 0);

        if (strcmp(line, "ok") == 0) continue;
        if (bank_tells_unread(line, failed)) {
            st = bank_unread(v->b, line);
            (void)sql_end(&q);
            return st;
        }
        ++*n;
        *only_indexes = *only_indexes && about_index(line);
        if (!about_index(line)) v->damaged = true;
        if (!quiet) st = report(v, about_index(line) ? "bank-index" : "bank-damaged", line, repaired && about_index(line));
    }
    return end_check(v, &q, st);
}

static is_status reindex(is_bank *b)
{
    sql q = sql_once(b, "REINDEX");

    return sql_run(&q, NULL);
}

static is_status check_integrity(verify *v)
{
    size_t n, left;
    bool only_indexes, ignored, mended = false;

    IS_TRY(bank_lock(v->b));
    is_status st = integrity(v, v->repair, false, &n, &only_indexes);
    bank_unlock(v->b);
    if (st != INFERSCALE_OK || !v->repair || n == 0) return st;
    if (only_indexes) mended = is_bank_reindex(v->b) == INFERSCALE_OK;
    IS_TRY(bank_lock(v->b)); /* said now: with what became of it */
    if (mended) st = report(v, "bank-index", "indexes of the database did not agree with its tables", true);
    if (st == INFERSCALE_OK) st = integrity(v, false, false, &left, &ignored);
    bank_unlock(v->b);
    return st;
}

is_status is_bank_reindex(is_bank *b)
{
    IS_TRY(bank_begin(b));
    return bank_end(b, reindex(b));
}

/* ---- Texts against their checksums --------------------------------------------------------------------------------------- */

static is_status check_texts(verify *v)
{
    is_status st = INFERSCALE_OK;
    sql q;

    IS_TRY(bank_lock(v->b));
    q = sql_once(v->b, "SELECT text, text_hash, item_id, version FROM fact_versions");
    while (st == INFERSCALE_OK && sql_row(&q)) {
        const void *text = sqlite3_column_text(q.stmt, 0);
        char what[160];

        if ((int64_t)is_checksum(text, (size_t)sqlite3_column_bytes(q.stmt, 0)) == sqlite3_column_int64(q.stmt, 1)) continue;
        snprintf(what, sizeof what, "the text of fact %lld, version %d, is not the one that was written; restore a backup, or update it",
                 (long long)sqlite3_column_int64(q.stmt, 2), sqlite3_column_int(q.stmt, 3));
        st = report(v, "text-rotten", what, false);
    }
    st = end_check(v, &q, st);
    bank_unlock(v->b);
    return st;
}

/* ---- The table of checks --------------------------------------------------------------------------------------------------- */

#define CURRENT(alias)                                                                                                         \
    "EXISTS(SELECT 1 FROM items i WHERE i.partition_id = " alias ".partition_id AND i.id = " alias ".item_id AND i.version = " \
    alias ".version)"
#define SEGMENT "printf('segment %s... of fact %d (' || s.policy || ')', lower(substr(hex(s.name), 1, 16)), s.item_id)"

/* An embedder's vectors all have one dimension: the one that most of them have. */
#define USUAL_DIMENSION                                                                                                        \
    "(SELECT length(u.q) FROM embeddings u WHERE u.fingerprint = e.fingerprint GROUP BY length(u.q) ORDER BY count(*) DESC LIMIT 1)"

typedef struct check {
    const char *kind;
    const char *find;    /* rows: the segment's id (else 0), a sentence */
    const char *repair;  /* NULL: the truth, or segments: these are dropped by id */
    bool segments;
} check;

static const check checks[] = {
    { "fact-without-text", "SELECT 0, printf('fact %d has no text in its current version %d; restore a backup, or forget it', i.id, i.version)"
      " FROM items i WHERE i.kind = 1 AND NOT EXISTS(SELECT 1 FROM fact_versions f WHERE f.partition_id = i.partition_id AND f.item_id ="
      " i.id AND f.version = i.version)", NULL, false },
    { "turn-without-text", "SELECT 0, printf('turn %d has no text; restore a backup, or forget it', i.id) FROM items i WHERE i.kind = 2 AND"
      " NOT EXISTS(SELECT 1 FROM turns t WHERE t.partition_id = i.partition_id AND t.item_id = i.id)", NULL, false },
    { "version-ahead", "SELECT 0, printf('fact %d has a version %d after its current one; restore a backup, or update it', f.item_id,"
      " f.version) FROM fact_versions f JOIN items i ON i.partition_id = f.partition_id AND i.id = f.item_id WHERE f.version > i.version",
      NULL, false },
    { "source-missing", "SELECT 0, printf('fact %d says that it came from turn %d, which is not there', f.item_id, f.source_turn) FROM"
      " fact_versions f WHERE f.source_turn <> 0 AND NOT EXISTS(SELECT 1 FROM turns t WHERE t.partition_id = f.partition_id AND t.item_id ="
      " f.source_turn)", NULL, false },
    { "embedding-stale", "SELECT 0, printf('an embedding of item %d, version %d, is not of what is remembered', e.item_id, e.version) FROM"
      " embeddings e WHERE NOT " CURRENT("e"), "DELETE FROM embeddings AS e WHERE NOT " CURRENT("e"), false },
    { "embedding-dimension", "SELECT 0, printf('the embedding of item %d has %d dimensions, others of its embedder %d', e.item_id,"
      " length(e.q), " USUAL_DIMENSION ") FROM embeddings e WHERE length(e.q) = 0 OR length(e.q) <> " USUAL_DIMENSION,
      "DELETE FROM embeddings AS e WHERE length(e.q) = 0 OR length(e.q) <> " USUAL_DIMENSION, false },
    { "embedding-scale", "SELECT 0, printf('the embedding of item %d has the impossible scale %g', e.item_id, e.scale) FROM embeddings e"
      " WHERE typeof(e.scale) <> 'real' OR e.scale < 0 OR e.scale > 1",
      "DELETE FROM embeddings AS e WHERE typeof(e.scale) <> 'real' OR e.scale < 0 OR e.scale > 1", false },
    { "embedding-rotten", "SELECT 0, printf('the embedding of item %d does not match its checksum', e.item_id) FROM embeddings e WHERE"
      " e.checksum IS NOT vector_sum(e.item_id, e.version, e.scale, e.q)",
      "DELETE FROM embeddings AS e WHERE e.checksum IS NOT vector_sum(e.item_id, e.version, e.scale, e.q)", false },
    { "segment-stale", "SELECT s.id, " SEGMENT " || ' is not of what is remembered' FROM segments s WHERE NOT " CURRENT("s"), NULL, true },
    { "segment-of-turn", "SELECT s.id, " SEGMENT " || ' is of no fact' FROM segments s JOIN items i ON i.partition_id = s.partition_id AND"
      " i.id = s.item_id WHERE i.kind <> 1", NULL, true },
    { "dependency-missing", "SELECT s.id, " SEGMENT " || ' does not depend on its own fact' FROM segments s WHERE NOT EXISTS(SELECT 1 FROM"
      " segment_deps d WHERE d.partition_id = s.partition_id AND d.item_id = s.item_id AND d.version = s.version AND d.segment_id = s.id)",
      NULL, true },
    { "dependency-stale", "SELECT s.id, " SEGMENT " || printf(' depends on item %d version %d, which is not what is remembered', d.item_id,"
      " d.version) FROM segment_deps d JOIN segments s ON s.id = d.segment_id WHERE NOT " CURRENT("d"), NULL, true },
    { "dependency-foreign", "SELECT s.id, " SEGMENT " || ' depends on another partition' FROM segment_deps d JOIN segments s ON"
      " s.id = d.segment_id WHERE d.partition_id <> s.partition_id", NULL, true },
    { "dependency-orphan", "SELECT 0, printf('a dependency on item %d is of no segment', d.item_id) FROM segment_deps d WHERE NOT EXISTS("
      "SELECT 1 FROM segments s WHERE s.id = d.segment_id)",
      "DELETE FROM segment_deps WHERE segment_id NOT IN (SELECT id FROM segments)", false },
    { "placement-stale", "SELECT 0, printf('a placement holds item %d version %d, which is not what is remembered', d.item_id, d.version)"
      " FROM placement_items d WHERE NOT " CURRENT("d") " OR NOT EXISTS(SELECT 1 FROM placements p WHERE p.id = d.placement_id AND"
      " p.partition_id = d.partition_id)",
      "DELETE FROM placements WHERE id IN (SELECT d.placement_id FROM placement_items d WHERE NOT " CURRENT("d") " OR d.partition_id <>"
      " placements.partition_id); DELETE FROM placement_items WHERE placement_id NOT IN (SELECT id FROM placements)", false },
    { "page-foreign", "SELECT 0, printf('place %d of page %d holds an item or page that is not there', f.slot, f.page_id) FROM page_facts f"
      " WHERE NOT EXISTS(SELECT 1 FROM pages g WHERE g.id = f.page_id AND g.partition_id = f.partition_id) OR NOT EXISTS(SELECT 1 FROM"
      " items i WHERE i.id = f.item_id AND i.partition_id = f.partition_id AND i.kind = 1)",
      "DELETE FROM page_facts AS f WHERE NOT EXISTS(SELECT 1 FROM pages g WHERE g.id = f.page_id AND g.partition_id = f.partition_id) OR"
      " NOT EXISTS(SELECT 1 FROM items i WHERE i.id = f.item_id AND i.partition_id = f.partition_id AND i.kind = 1)", false },
    { "page-twice", "SELECT 0, printf('fact %d stands twice in the pages of one view', f.item_id) FROM page_facts f JOIN pages g ON"
      " g.id = f.page_id WHERE f.lead = 0 GROUP BY g.partition_id, g.fingerprint, g.policy, g.lane, f.item_id, f.version"
      " HAVING count(*) > 1",
      "DELETE FROM pages WHERE id IN (SELECT f.page_id FROM page_facts f JOIN pages g ON g.id = f.page_id WHERE f.lead = 0 AND EXISTS("
      "SELECT 1 FROM page_facts f2 JOIN pages g2 ON g2.id = f2.page_id WHERE f2.lead = 0 AND f2.item_id = f.item_id AND f2.version ="
      " f.version AND g2.partition_id = g.partition_id AND g2.fingerprint = g.fingerprint AND g2.policy = g.policy AND g2.lane = g.lane"
      " AND (g2.id < g.id OR (g2.id = g.id AND f2.slot < f.slot))))", false },
    { "page-leads-itself", "SELECT 0, printf('fact %d stands in page %d among what leads it too: its KV saw its own text', f.item_id,"
      " f.page_id) FROM page_facts f GROUP BY f.page_id, f.item_id, f.version HAVING count(*) > 1 AND max(f.lead) = 1",
      "DELETE FROM pages WHERE id IN (SELECT f.page_id FROM page_facts f GROUP BY f.page_id, f.item_id, f.version HAVING count(*) > 1 AND"
      " max(f.lead) = 1)", false },
    { "doomed-named", "SELECT 0, printf('segment %s... is both in use and to be removed', lower(substr(hex(d.name), 1, 16))) FROM doomed d"
      " WHERE EXISTS(SELECT 1 FROM segments s WHERE s.partition_id = d.partition_id AND s.name = d.name)",
      "DELETE FROM doomed AS d WHERE EXISTS(SELECT 1 FROM segments s WHERE s.partition_id = d.partition_id AND s.name = d.name)", false },
};

/* ---- Dropping segments ------------------------------------------------------------------------------------------------------- */

/* In a transaction. A name that no row uses any more is doomed, and told to the caller. */
static is_status drop_segment(is_bank *b, int64_t id, is_names *stale)
{
    uint8_t name[IS_HASH_BYTES];
    int64_t partition = 0, changes = 0;
    sql q = sql_once(b, "SELECT partition_id, name FROM segments WHERE id = ?1 AND length(name) = 32");

    sql_i64(&q, id);
    if (sql_row(&q)) {
        partition = sqlite3_column_int64(q.stmt, 0);
        memcpy(name, sqlite3_column_blob(q.stmt, 1), sizeof name);
    }
    IS_TRY(sql_end(&q));
    q = sql_once(b, "DELETE FROM segments WHERE id = ?1"); /* its dependencies go with it */
    sql_i64(&q, id);
    IS_TRY(sql_run(&q, NULL));
    if (!partition) return INFERSCALE_OK;
    q = sql_once(b, "INSERT INTO doomed(partition_id, name) SELECT ?1, ?2 WHERE NOT EXISTS(SELECT 1 FROM segments WHERE partition_id = ?1"
                    " AND name = ?2) ON CONFLICT DO NOTHING");
    sql_i64(&q, partition);
    sql_blob(&q, name, sizeof name);
    IS_TRY(sql_run(&q, &changes));
    return changes && stale ? bank_names_add(stale, name) : INFERSCALE_OK;
}

/* ---- Running them ------------------------------------------------------------------------------------------------------------ */

static is_status find(verify *v, const check *c, bool say, bool repaired, size_t *n)
{
    is_status st = INFERSCALE_OK;
    sql q = sql_once(v->b, c->find);

    *n = 0;
    while (st == INFERSCALE_OK && sql_row(&q)) {
        ++*n;
        if (say) st = report(v, c->kind, text_at(&q, 1), repaired);
    }
    return end_check(v, &q, st);
}

static is_status drop_found(verify *v, const check *c)
{
    int64_t *ids = NULL;
    size_t n = 0;
    sql q = sql_once(v->b, c->find);
    is_status st = bank_collect_ids(&q, &ids, &n);

    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++) st = drop_segment(v->b, ids[i], v->stale);
    is_free(ids);
    return st;
}

static is_status mend(verify *v, const check *c)
{
    size_t n;

    IS_TRY(find(v, c, true, true, &n));
    if (c->segments) return drop_found(v, c);
    return bank_fail(v->b, sqlite3_exec(v->b->db, c->repair, NULL, NULL, NULL));
}

/* Looks without holding writers up; only what is found is looked at again, and mended, in a transaction. */
static is_status run_check(verify *v, const check *c)
{
    bool can = c->segments || c->repair;
    size_t n = 0;
    is_status st;

    IS_TRY(bank_lock(v->b));
    st = find(v, c, !(v->repair && can), false, &n);
    bank_unlock(v->b);
    if (st != INFERSCALE_OK || n == 0 || !v->repair || !can || v->damaged) return st;
    IS_TRY(bank_begin(v->b));
    return bank_end(v->b, mend(v, c));
}

/* After the views' own checks have dropped what they could: what is left refers to nothing. */
static is_status check_references(verify *v)
{
    is_status st = INFERSCALE_OK;
    sql q;

    IS_TRY(bank_lock(v->b));
    q = sql_once(v->b, "PRAGMA foreign_key_check");
    while (st == INFERSCALE_OK && sql_row(&q)) {
        char what[200];

        snprintf(what, sizeof what, "a row of %.60s refers to a row of %.60s that is not there", text_at(&q, 0), text_at(&q, 2));
        st = report(v, "reference", what, false);
    }
    st = end_check(v, &q, st);
    bank_unlock(v->b);
    return st;
}

is_status is_bank_verify(is_bank *b, bool repair, is_bank_problem_fn each, void *ctx, is_names *stale)
{
    verify v = { .b = b, .repair = repair && !b->read_only, .each = each, .ctx = ctx, .stale = stale };

    if (stale) *stale = (is_names){ 0 };
    IS_TRY(check_integrity(&v));
    for (size_t i = 0; i < sizeof checks / sizeof *checks && !v.damaged; i++) IS_TRY(run_check(&v, &checks[i]));
    if (!v.damaged) IS_TRY(check_texts(&v));
    return v.damaged ? INFERSCALE_OK : check_references(&v);
}
