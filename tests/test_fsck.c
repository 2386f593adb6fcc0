/* What must hold of fsck: every kind of damage is found and named; what belongs to a view is mended and made again; what is remembered is
 * never touched, even where it is what is damaged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "bank/bank.h"
#include "support/scratch.h"
#include "support/store_kit.h"
#include "support/store_template.h"

static void resize(const char *path, double factor, long plus)
{
    size_t n;
    char *bytes = store_read(path, &n), *more;
    size_t size = (size_t)((double)n * factor) + (size_t)plus;

    more = calloc(1, size + 1);
    memcpy(more, bytes, size < n ? size : n);
    store_write(path, more, size);
    free(more);
    free(bytes);
}

static void file_missing(void) { assert_int_equal(unlink(segment(3)), 0); }
static void vault_missing(void)
{
    store_copy(template_home, home);
    scratch_remove(strdup(scratch_path(home, "vault")));
}
static void file_cut(void) { resize(segment(2), 0.5, 0); }
static void file_empty(void) { resize(segment(2), 0, 0); }
static void file_padded(void) { resize(segment(1), 1, 64); }
static void head_flipped(void) { flip(segment(4), 70); }
static void tokens_flipped(void) { flip(segment(5), 129); }

static void another_segment(void)
{
    char other[1024];

    snprintf(other, sizeof other, "%s", segment(0));
    copy_over(other, segment(1));
}

static void no_segment(void) { store_write(segment(0), "hello, this is no segment at all, is it, or what would you say to it?", 70); }

static void newer_version(void)
{
    size_t n;
    char path[1024], *bytes;

    snprintf(path, sizeof path, "%s", segment(6));
    bytes = store_read(path, &n);
    bytes[8] = 99;
    store_write(path, bytes, n);
    free(bytes);
}

static void file_left_over(void) { store_write(unknown("tmp", ".999999.1000000000.00000000.tmp"), "x", 1); }

/* As a process leaves it that is killed between forgetting and removing. The name is that of
 * file_unnamed. */
#define E32 "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"
static void file_doomed(void)
{
    file_unnamed();
    store_sql(home, "INSERT INTO doomed(partition_id, name) SELECT id, x'" E32 E32 "'"
                    " FROM partitions LIMIT 1");
}
static void folder_stray(void) { mkdir(scratch_path(home, "vault/holiday-photos"), 0700); }
static void mode_file(void) { chmod(segment(0), 0644); }
static void mode_folder(void) { chmod(scratch_path(home, "vault"), 0755); }
static void mode_bank(void) { chmod(scratch_path(home, "bank.sqlite"), 0644); }

/* Two policies that mean one context share a file: all its rows. */
static void book_lost(void)
{
    store_sql(home, "DELETE FROM segments WHERE name = (SELECT name FROM segments ORDER BY id LIMIT 1)");
}
static void books_differ(void) { store_sql(home, "UPDATE segments SET n_tokens = n_tokens + 1 WHERE id = (SELECT min(id) FROM segments)"); }
static void books_model(void)
{
    store_sql(home, "CREATE TEMP TABLE t AS SELECT fingerprint f FROM segments LIMIT 1;"
                    "INSERT INTO segments(partition_id, item_id, version, name, fingerprint, policy, n_tokens, n_context, n_computed, bytes)"
                    " SELECT partition_id, item_id, version, randomblob(32), fingerprint, 'x', 1, 1, 1, 1 FROM segments LIMIT 1;"
                    "INSERT INTO segment_deps SELECT partition_id, item_id, version, id FROM segments WHERE policy = 'x'");
}
static void dependency_missing(void)
{
    store_sql(home, "DELETE FROM segment_deps WHERE segment_id = (SELECT min(id) FROM segments) AND item_id = (SELECT item_id FROM segments"
                    " ORDER BY id LIMIT 1)");
}
static void dependency_stale(void)
{
    store_sql(home, "INSERT INTO segment_deps SELECT partition_id, item_id, version + 1, id FROM segments ORDER BY id LIMIT 2");
}
static void dependency_gone(void) { store_sql(home, "INSERT INTO segment_deps SELECT partition_id, 99999, 1, id FROM segments LIMIT 1"); }
static void dependency_orphan(void) { store_sql(home, "INSERT INTO segment_deps SELECT partition_id, id, version, 99999 FROM items LIMIT 1"); }
static void dependency_foreign(void)
{
    store_sql(home, "INSERT INTO segment_deps SELECT i.partition_id, i.id, i.version, s.id FROM items i JOIN segments s ON s.partition_id"
                    " <> i.partition_id LIMIT 1");
}
static void segment_stale(void) { store_sql(home, "UPDATE segments SET version = version + 3 WHERE id = (SELECT min(id) FROM segments)"); }
static void segment_of_turn(void)
{
    store_sql(home, "UPDATE segments SET item_id = (SELECT min(item_id) FROM turns), version = 1 WHERE id = (SELECT id FROM segments s WHERE"
                    " s.partition_id = (SELECT partition_id FROM turns LIMIT 1) LIMIT 1)");
}
static void embedding_stale(void) { store_sql(home, "UPDATE embeddings SET version = 9 WHERE item_id = (SELECT min(item_id) FROM embeddings)"); }
static void embedding_orphan(void)
{
    store_sql(home, "INSERT INTO embeddings SELECT partition_id, 77777, fingerprint, 1, scale, q, checksum FROM embeddings LIMIT 1");
}
static void embedding_dimension(void)
{
    store_sql(home, "UPDATE embeddings SET q = substr(q, 2) WHERE item_id IN (SELECT item_id FROM embeddings ORDER BY item_id LIMIT 2)");
}
static void embedding_empty(void) { store_sql(home, "UPDATE embeddings SET q = x'' WHERE item_id = (SELECT max(item_id) FROM embeddings)"); }
static void embedding_scale(void) { store_sql(home, "UPDATE embeddings SET scale = 1e30 WHERE item_id = (SELECT min(item_id) FROM embeddings)"); }
static void embedding_flipped(void) /* one value, by one */
{
    store_sql(home, "UPDATE embeddings SET q = CAST(substr(q, 1, 20) || x'2a' || substr(q, 22) AS BLOB) WHERE item_id = (SELECT max(item_id)"
                    " FROM embeddings WHERE substr(q, 21, 1) <> x'2a')");
}
static void embedding_rescaled(void)
{
    store_sql(home, "UPDATE embeddings SET scale = scale / 2 WHERE item_id = (SELECT min(item_id) FROM embeddings)");
}
static void embedding_of_another(void)
{
    store_sql(home, "UPDATE embeddings AS e SET (scale, q, checksum) = (SELECT scale, q, checksum FROM embeddings o WHERE o.partition_id ="
                    " e.partition_id ORDER BY item_id DESC LIMIT 1) WHERE item_id = (SELECT min(item_id) FROM embeddings)");
}
static void placement_stale(void)
{
    store_sql(home, "INSERT INTO placements(partition_id, profile, prefix, write_time) SELECT id, randomblob(32), randomblob(32), 1 FROM"
                    " partitions LIMIT 1; INSERT INTO placement_items SELECT (SELECT max(id) FROM placements), 0, i.partition_id, i.id,"
                    " i.version + 1 FROM items i WHERE i.kind = 1 LIMIT 1");
}
static void page_foreign(void)
{
    store_sql(home, "INSERT INTO page_facts(partition_id, page_id, slot, item_id, version, lead) SELECT partition_id, 88888, 0, id, version, 0"
                    " FROM items WHERE kind = 1 LIMIT 1");
}
static void page_leads_itself(void)
{
    store_sql(home, "INSERT INTO page_facts(partition_id, page_id, slot, item_id, version, lead) SELECT partition_id, page_id, 1000, item_id,"
                    " version, 1 FROM page_facts WHERE lead = 0 ORDER BY page_id, slot LIMIT 1");
}
static void page_twice(void)
{
    store_sql(home, "INSERT INTO pages(partition_id, fingerprint, policy, lane, open) SELECT id, zeroblob(32), 'page:4', 0, 0 FROM partitions"
                    " LIMIT 1; INSERT INTO page_facts(partition_id, page_id, slot, item_id, version, lead) SELECT partition_id, (SELECT max(id)"
                    " FROM pages), 0, id, version, 0 FROM items WHERE kind = 1 LIMIT 1; INSERT INTO page_facts(partition_id, page_id, slot,"
                    " item_id, version, lead) SELECT partition_id, page_id, 1, item_id, version, 0 FROM page_facts ORDER BY page_id DESC LIMIT 1");
}
static void doomed_named(void) { store_sql(home, "INSERT INTO doomed(partition_id, name) SELECT partition_id, name FROM segments LIMIT 1"); }

static void index_wrong(void) /* an index that should hold all turns holds those with a name only */
{
    store_sql(home, "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE INDEX turns_by_external_id ON turns(partition_id,"
                    " external_id)' WHERE name = 'turns_by_external_id'; PRAGMA writable_schema = RESET");
}
static void text_rotten(void) { store_sql(home, "UPDATE fact_versions SET text = text || '.' WHERE item_id = (SELECT max(item_id) FROM fact_versions)"); }
static void fact_without_text(void) { store_sql(home, "DELETE FROM fact_versions WHERE item_id = (SELECT max(item_id) FROM fact_versions)"); }
static void turn_without_text(void) { store_sql(home, "DELETE FROM turns WHERE item_id = (SELECT max(item_id) FROM turns)"); }
static void version_ahead(void)
{
    store_sql(home, "INSERT INTO fact_versions SELECT partition_id, item_id, 7, text, text_hash, event_time, write_time, valid_from, valid_to,"
                    " expires, source_turn, metadata, dated FROM fact_versions LIMIT 1");
}
static void source_missing(void) { store_sql(home, "UPDATE fact_versions SET source_turn = 66666 WHERE item_id = (SELECT max(item_id) FROM fact_versions)"); }
static void reference(void) { store_sql(home, "UPDATE turns SET conversation_id = 55555 WHERE item_id = (SELECT max(item_id) FROM turns)"); }

static void page_garbage(void)
{
    char path[700];
    size_t n;
    char *bytes;

    snprintf(path, sizeof path, "%s/bank.sqlite", home);
    bytes = store_read(path, &n);
    for (size_t page = 4; page * 4096 < n && page < 12; page++) memset(bytes + page * 4096, 0x5a, 64);
    store_write(path, bytes, n);
    free(bytes);
}

typedef struct damage {
    const char *kind;
    void (*make)(void);
    /* BY_GC: another bank may name it. LEFT: the truth, or not ours: said, and not touched.
     * NO_DAMAGE: a killed process may leave it, and opening removes it: said, and the store is
     * sound. */
    enum { MENDED, BY_OPENING, BY_GC, LEFT, NO_DAMAGE } outcome;
} damage;

static const damage damages[] = {
    { "file-missing", file_missing, MENDED },       { "file-missing", vault_missing, MENDED },
    { "file-torn", file_cut, MENDED },              { "file-torn", file_empty, MENDED },
    { "file-torn", file_padded, MENDED },           { "file-rotten", payload_flipped, MENDED },
    { "file-rotten", head_flipped, MENDED },        { "file-rotten", tokens_flipped, MENDED },
    { "file-foreign", another_segment, MENDED },    { "file-foreign", no_segment, MENDED },
    { "file-foreign", newer_version, MENDED },      { "file-unnamed", file_unnamed, BY_GC },
    { "file-misplaced", file_misplaced, MENDED },   { "file-bad", file_bad, MENDED },
    { "file-left-over", file_left_over, NO_DAMAGE }, { "file-doomed", file_doomed, NO_DAMAGE },
    { "file-stray", file_stray, LEFT },
    { "file-stray", folder_stray, LEFT },           { "wrong-mode", mode_file, MENDED },
    { "wrong-mode", mode_folder, MENDED },          { "wrong-mode", mode_bank, MENDED },
    { "file-unnamed", book_lost, BY_GC },          { "dependency-orphan", book_lost, BY_GC },
    { "books-differ", books_differ, MENDED },       { "file-missing", books_model, MENDED },
    { "dependency-missing", dependency_missing, MENDED }, { "dependency-stale", dependency_stale, MENDED },
    { "dependency-stale", dependency_gone, MENDED },      { "dependency-orphan", dependency_orphan, MENDED },
    { "dependency-foreign", dependency_foreign, MENDED }, { "segment-stale", segment_stale, MENDED },
    { "segment-of-turn", segment_of_turn, MENDED }, { "embedding-stale", embedding_stale, MENDED },
    { "embedding-stale", embedding_orphan, MENDED }, { "embedding-dimension", embedding_dimension, MENDED },
    { "embedding-dimension", embedding_empty, MENDED }, { "embedding-scale", embedding_scale, MENDED },
    { "embedding-rotten", embedding_flipped, MENDED }, { "embedding-rotten", embedding_rescaled, MENDED },
    { "embedding-rotten", embedding_of_another, MENDED },
    { "placement-stale", placement_stale, MENDED }, { "page-foreign", page_foreign, MENDED },
    { "page-twice", page_twice, MENDED },           { "page-leads-itself", page_leads_itself, MENDED },
              { "doomed-named", doomed_named, BY_OPENING },
    { "bank-index", index_wrong, MENDED },          { "text-rotten", text_rotten, LEFT },
    { "fact-without-text", fact_without_text, LEFT }, { "turn-without-text", turn_without_text, LEFT },
    { "version-ahead", version_ahead, LEFT },       { "source-missing", source_missing, LEFT },
    { "reference", reference, LEFT },
};

static void expect_kind(const damage *d, const inferscale_fsck_report *r, const char *when)
{
    if (store_count_kind(r, d->kind) > 0) return;
    store_print(r);
    fail_msg("%s: not found %s", d->kind, when);
}

/* Found while read-only; mended or left; and then, if it could be mended, as if nothing had been. */
static void try_damage(const damage *d)
{
    char *before, *after;
    inferscale_fsck_report *r;

    store_copy(template_home, home);
    d->make();
    before = store_truth(home);
    r = store_fsck(home, false);
    expect_kind(d, r, "by looking");
    assert_int_equal(r->ok, d->outcome == NO_DAMAGE);
    for (size_t i = 0; i < r->n_problems; i++)
        assert_true(r->problems[i].repaired < (d->outcome != NO_DAMAGE));
    inferscale_fsck_free(r);
    r = store_fsck(home, true);
    if (d->outcome != BY_OPENING && d->outcome != NO_DAMAGE) expect_kind(d, r, "when repairing");
    if (d->outcome == BY_GC) assert_int_equal(store_count_kind(r, "file-unnamed"), 1);
    if (r->ok != (d->outcome != LEFT && d->outcome != BY_GC)) {
        store_print(r);
        fail_msg("%s: ok = %d after repairing", d->kind, r->ok);
    }
    inferscale_fsck_free(r);
    after = store_truth(home);
    assert_string_equal(before, after);
    free(before);
    free(after);
    if (d->outcome == LEFT) return;
    if (d->outcome == BY_GC) {
        inferscale_gc_options gc = INFERSCALE_GC_OPTIONS_INIT;
        inferscale *cleaned = store_open(home, NULL, NULL, false);

        gc.unnamed = 1;
        OK(inferscale_gc(cleaned, &gc));
        assert_int_equal(gc.unnamed_files, 1);
        inferscale_close(cleaned);
    }
    store_expect_sound(home);
    inferscale *is = store_open(home, NULL, NULL, false);
    store_encode(is);
    inferscale_answer *a = store_ask(is);
    assert_string_equal(a->fallback, "");
    assert_string_equal(a->text, answer);
    after = store_dump(is);
    assert_string_equal(after, memory);
    free(after);
    inferscale_answer_free(a);
    inferscale_close(is);
    store_expect_sound(home);
}

static void every_damage_is_found_and_mended_where_it_may_be(void **state)
{
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) try_damage(&damages[i]);
    printf("%zu kinds of damage\n", sizeof damages / sizeof *damages);
}

static void a_sound_store_is_sound(void **state)
{
    inferscale_fsck_report *r;

    store_expect_sound(home);
    r = store_fsck(home, false);
    size_t n;
    char **files = store_files(home, ".seg", &n);
    assert_int_equal(r->n_files, n);
    assert_true(r->n_segments > 0 && r->n_segments <= n);
    assert_true(r->bytes_read > 0);
    assert_int_equal(r->n_owners, 2);
    store_files_free(files, n);
    inferscale_fsck_free(r);
}

/* What is right is no finding, in the corners where SQLite's own check was once wrong too. */
static void a_sound_placement_is_sound(void **state)
{
    const uint8_t profile[IS_HASH_BYTES] = { 1 }, prefix[IS_HASH_BYTES] = { 2 };
    is_partition p;
    is_bank *b = NULL;
    bool ok = false;

    OK(is_bank_open(scratch_path(home, "bank.sqlite"), false, &b));
    OK(is_bank_partition(b, &store_anna, false, &p));
    const is_dep facts[] = { { store_sql_int(home, "SELECT min(item_id) FROM fact_versions WHERE partition_id = 1"), 1 },
                             { store_sql_int(home, "SELECT max(item_id) FROM fact_versions WHERE partition_id = 1"), 1 } };
    OK(is_bank_put_placement(b, &p, profile, prefix, facts, 2));
    OK(is_bank_check(b, &ok));
    assert_true(ok);
    is_bank_close(b);
    store_expect_sound(home);
}

static void a_damaged_database_is_a_finding(void **state)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale *is = NULL;
    inferscale_fsck_report *r = NULL;
    inferscale_status st;

    page_garbage();
    o.home = home;
    o.read_only = 1;
    st = inferscale_open(&is, &o);
    if (st == INFERSCALE_OK) {
        OK(inferscale_fsck(is, NULL, &r));
        assert_false(r->ok);
        assert_true(store_count_kind(r, "bank-damaged") > 0);
        inferscale_fsck_free(r);
    } else {
        assert_int_equal(st, INFERSCALE_E_CORRUPT);
    }
    inferscale_close(is);
}

static void bad_arguments_are_refused(void **state)
{
    inferscale *is = store_open(home, NULL, NULL, true);
    inferscale_fsck_options f = INFERSCALE_FSCK_OPTIONS_INIT;
    inferscale_gc_options g = INFERSCALE_GC_OPTIONS_INIT;
    inferscale_rebuild_options b = INFERSCALE_REBUILD_OPTIONS_INIT;
    inferscale_scope nobody = { .user = "nobody" };
    inferscale_fsck_report *r = (void *)1;
    inferscale_usage_report *u = (void *)1;

    f.repair = 1;
    FAILS(E_READONLY, inferscale_fsck(is, &f, &r));
    assert_null(r);
    FAILS(E_INVALID, inferscale_fsck(is, &(inferscale_fsck_options){ 0 }, &r));
    FAILS(E_INVALID, inferscale_fsck(NULL, NULL, &r));
    FAILS(E_INVALID, inferscale_fsck(is, NULL, NULL));
    FAILS(E_READONLY, inferscale_gc(is, &g));
    g.dry_run = 1;
    g.keep = "everything";
    FAILS(E_INVALID, inferscale_gc(is, &g));
    g.keep = "abcdefg";
    FAILS(E_INVALID, inferscale_gc(is, &g));
    FAILS(E_INVALID, inferscale_gc(is, &(inferscale_gc_options){ 0 }));
    FAILS(E_READONLY, inferscale_rebuild(is, NULL, &b));
    b.what = 8;
    FAILS(E_INVALID, inferscale_rebuild(is, NULL, &b));
    FAILS(E_NOTFOUND, inferscale_usage(is, &nobody, &u));
    assert_null(u);
    inferscale_fsck_free(NULL);
    inferscale_usage_free(NULL);
    inferscale_close(is);
}

/* Every policy's books, pages and variants hold, also after a fact was changed and one forgotten. */
static void the_books_of_every_policy_are_sound(void **state)
{
    static const char *const policies[] = { "alone", "header", "turns:2", "facts:3", "cwe:3", "near:3", "page:4", "page:5+2", "page:4@time" };
    inferscale_options o = store_options(home);

    o.model = "mock:id=3";
    o.refine = "company:3";
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        inferscale_encode_options e = INFERSCALE_ENCODE_OPTIONS_INIT;
        inferscale_fact f = { .text = "Anna has changed her mind.", .event_time = 1714521600 + (int64_t)i };
        inferscale *is = NULL;
        int64_t id;

        o.policy = policies[i];
        OK(inferscale_open(&is, &o));
        e.stage = INFERSCALE_STAGE_ALL;
        OK(inferscale_encode(is, &store_anna, &e));
        store_expect_sound(home);
        id = store_sql_int(home, "SELECT max(item_id) FROM segments WHERE partition_id = 1");
        OK(inferscale_forget(is, &store_anna, &id, 1, NULL));
        store_expect_sound(home);
        OK(inferscale_update(is, &store_anna, store_sql_int(home, "SELECT min(item_id) FROM fact_versions WHERE partition_id = 1"), &f));
        store_expect_sound(home);
        OK(inferscale_encode(is, &store_anna, &e));
        inferscale_close(is);
        store_expect_sound(home);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_sound_store_is_sound, fresh),
        cmocka_unit_test_setup(every_damage_is_found_and_mended_where_it_may_be, fresh),
        cmocka_unit_test_setup(a_sound_placement_is_sound, fresh),
        cmocka_unit_test_setup(a_damaged_database_is_a_finding, fresh),
        cmocka_unit_test_setup(bad_arguments_are_refused, fresh),
        cmocka_unit_test_setup(the_books_of_every_policy_are_sound, fresh),
    };

    return cmocka_run_group_tests(tests, make_template, remove_template);
}
