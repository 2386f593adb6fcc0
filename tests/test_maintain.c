/* What must hold of fsck, gc, du and rebuild: every kind of damage is found and named; what belongs to a view is mended and made again,
 * what is remembered is never touched, even where it is what is damaged; nothing that is wanted is ever removed; another model's view
 * stands beside the old one; and all of it beside others at work. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "bank/bank.h"
#include "support/scratch.h"
#include "support/store_kit.h"

enum { FACTS = 24 };

static char *folder;
static char home[600], template_home[600];
static char *memory; /* what the template remembers */
static char *answer; /* and answers */

/* One store is made once, and copied for each damage. */
static int make_template(void **state)
{
    inferscale *is;
    inferscale_answer *a;

    folder = scratch_make();
    snprintf(template_home, sizeof template_home, "%s/template", folder);
    snprintf(home, sizeof home, "%s/home", folder);
    is = store_open(template_home, NULL, NULL, false);
    store_fill(is, FACTS, true);
    memory = store_dump(is);
    a = store_ask(is);
    assert_string_equal(a->fallback, "");
    assert_true(a->tokens_injected > 0);
    answer = strdup(a->text);
    inferscale_answer_free(a);
    inferscale_close(is);
    return 0;
}

static int remove_template(void **state)
{
    free(memory);
    free(answer);
    scratch_remove(folder);
    return 0;
}

static int fresh(void **state)
{
    store_copy(template_home, home);
    return 0;
}

/* ---- Damage ------------------------------------------------------------------------------------------------------------------ */

/* The nth segment file; static. */
static const char *segment(size_t nth)
{
    static char path[1024];
    size_t n;
    char **files = store_files(home, ".seg", &n);

    assert_true(nth < n);
    snprintf(path, sizeof path, "%s", files[nth]);
    store_files_free(files, n);
    return path;
}

static void flip(const char *path, long at) /* negative: from the end */
{
    size_t n;
    char *bytes = store_read(path, &n);

    bytes[at < 0 ? n - (size_t)-at : (size_t)at] ^= 0x10;
    store_write(path, bytes, n);
    free(bytes);
}

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

static void copy_over(const char *from, const char *to)
{
    size_t n;
    char *bytes = store_read(from, &n);

    store_write(to, bytes, n);
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
static void payload_flipped(void) { flip(segment(4), -65); }
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

/* DIR/ab of a name that no segment has. */
static const char *unknown(const char *where, const char *suffix)
{
    static char path[1024];
    char hex[65];

    memset(hex, 'e', 64);
    hex[64] = 0;
    snprintf(path, sizeof path, "%s/vault/%s", home, where);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/vault/%s/%s%s", home, where, hex, suffix);
    return path;
}

static void file_unnamed(void) { copy_over(segment(0), unknown("ee", ".seg")); }
static void file_misplaced(void) { copy_over(segment(0), unknown("ab", ".seg")); }
static void file_bad(void) { store_write(unknown("ee", ".bad"), "x", 1); }
static void file_left_over(void) { store_write(unknown("tmp", ".999999.1000000000.00000000.tmp"), "x", 1); }
static void file_stray(void) { store_write(unknown("ee", ".txt"), "notes of somebody", 17); }
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
                    " expires, source_turn, metadata FROM fact_versions LIMIT 1");
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
    enum { MENDED, BY_OPENING, LEFT } outcome; /* LEFT: the truth, or not ours: said, and not touched */
} damage;

static const damage damages[] = {
    { "file-missing", file_missing, MENDED },       { "file-missing", vault_missing, MENDED },
    { "file-torn", file_cut, MENDED },              { "file-torn", file_empty, MENDED },
    { "file-torn", file_padded, MENDED },           { "file-rotten", payload_flipped, MENDED },
    { "file-rotten", head_flipped, MENDED },        { "file-rotten", tokens_flipped, MENDED },
    { "file-foreign", another_segment, MENDED },    { "file-foreign", no_segment, MENDED },
    { "file-foreign", newer_version, MENDED },      { "file-unnamed", file_unnamed, MENDED },
    { "file-misplaced", file_misplaced, MENDED },   { "file-bad", file_bad, MENDED },
    { "file-left-over", file_left_over, BY_OPENING }, { "file-stray", file_stray, LEFT },
    { "file-stray", folder_stray, LEFT },           { "wrong-mode", mode_file, MENDED },
    { "wrong-mode", mode_folder, MENDED },          { "wrong-mode", mode_bank, MENDED },
    { "file-unnamed", book_lost, MENDED },          { "dependency-orphan", book_lost, MENDED },
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
    assert_false(r->ok);
    for (size_t i = 0; i < r->n_problems; i++) assert_false(r->problems[i].repaired);
    inferscale_fsck_free(r);
    r = store_fsck(home, true);
    if (d->outcome != BY_OPENING) expect_kind(d, r, "when repairing");
    if (r->ok != (d->outcome != LEFT)) {
        store_print(r);
        fail_msg("%s: ok = %d after repairing", d->kind, r->ok);
    }
    inferscale_fsck_free(r);
    after = store_truth(home);
    assert_string_equal(before, after);
    free(before);
    free(after);
    if (d->outcome == LEFT) return;
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

    o.model = "mock:lenient,id=3";
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

/* ---- gc ------------------------------------------------------------------------------------------------------------------------ */

static size_t count_files(const char *suffix)
{
    size_t n;
    char **files = store_files(home, suffix, &n);

    store_files_free(files, n);
    return n;
}

static void gc_removes_what_nobody_names_and_nothing_else(void **state)
{
    inferscale_gc_options o = INFERSCALE_GC_OPTIONS_INIT;
    size_t before = count_files(".seg"), all;
    inferscale *is;

    file_unnamed();
    file_misplaced();
    file_bad();
    file_stray();
    all = count_files("");
    is = store_open(home, NULL, NULL, false);
    o.dry_run = 1;
    OK(inferscale_gc(is, &o));
    assert_int_equal(o.unnamed_files, 2);
    assert_int_equal(o.bad_files, 1);
    assert_int_equal(count_files(""), all);
    uint64_t would = o.removed_bytes;
    o.dry_run = 0;
    OK(inferscale_gc(is, &o));
    assert_int_equal(o.unnamed_files, 2);
    assert_int_equal(o.bad_files, 1);
    assert_int_equal(o.removed_bytes, would);
    assert_int_equal(count_files(".seg"), before);
    assert_int_equal(count_files(".bad"), 0);
    assert_int_equal(count_files(".txt"), 1); /* not ours */
    OK(inferscale_gc(is, &o));
    assert_int_equal(o.unnamed_files + o.bad_files + o.view_files + o.evicted_files + o.removed_bytes, 0);
    unlink(unknown("ee", ".txt"));
    inferscale_answer *a = store_ask(is);
    assert_string_equal(a->text, answer);
    assert_string_equal(a->fallback, "");
    inferscale_answer_free(a);
    inferscale_close(is);
    store_expect_sound(home);
}

/* With another model facts are served as text until its own view is there; the old view stays and serves its model. */
static void another_model_is_another_view_beside_the_old_one(void **state)
{
    inferscale_gc_options o = INFERSCALE_GC_OPTIONS_INIT;
    size_t old_files = count_files(".seg"), both;
    inferscale *is = store_open(home, "mock:id=2", "mock:dim=24", false);
    inferscale_answer *a = store_ask(is);

    assert_int_equal(a->tokens_injected, 0); /* a segment of another model never serves */
    assert_non_null(strstr(a->fallback, "no KV"));
    inferscale_answer_free(a);
    store_encode(is);
    both = count_files(".seg");
    assert_true(both > old_files);
    a = store_ask(is);
    assert_string_equal(a->fallback, "");
    assert_true(a->tokens_injected > 0);
    inferscale_answer_free(a);
    inferscale_close(is);
    store_expect_sound(home);
    is = store_open(home, NULL, NULL, false); /* back: nothing has to be made again */
    a = store_ask(is);
    assert_string_equal(a->fallback, "");
    assert_string_equal(a->text, answer);
    inferscale_answer_free(a);
    inferscale_encode_options e = INFERSCALE_ENCODE_OPTIONS_INIT;
    OK(inferscale_encode(is, &store_anna, &e));
    assert_int_equal(e.tokens_computed, 0);
    o.keep = "current";
    OK(inferscale_gc(is, &o));
    assert_int_equal(o.view_files, both - old_files);
    assert_true(o.view_embeddings > 0);
    assert_int_equal(count_files(".seg"), old_files);
    a = store_ask(is);
    assert_string_equal(a->text, answer);
    assert_string_equal(a->fallback, "");
    inferscale_answer_free(a);
    inferscale_close(is);
    store_expect_sound(home);
    is = store_open(home, "mock:id=2", "mock:dim=24", false);
    a = store_ask(is);
    assert_int_equal(a->tokens_injected, 0);
    inferscale_answer_free(a);
    inferscale_close(is);
}

/* System text and codec are part of what makes a view, too. */
static void another_codec_or_system_text_is_another_view(void **state)
{
    inferscale_options o = store_options(home);
    inferscale *is = NULL;
    size_t old_files = count_files(".seg");
    inferscale_usage_report *u = NULL;
    inferscale_gc_options g = INFERSCALE_GC_OPTIONS_INIT;
    char keep[80] = "";

    is = store_open(home, NULL, NULL, false);
    OK(inferscale_usage(is, NULL, &u));
    for (size_t i = 0; i < u->n; i++)
        if (strcmp(u->rows[i].what, "segments") == 0) snprintf(keep, sizeof keep, "%.12s", u->rows[i].model);
    inferscale_usage_free(u);
    inferscale_close(is);
    for (int i = 0; i < 2; i++) {
        o.codec = i ? "f16" : "f32";
        o.system = i ? "You are a parrot." : NULL;
        OK(inferscale_open(&is, &o));
        inferscale_answer *a = store_ask(is);
        assert_int_equal(a->tokens_injected, 0);
        inferscale_answer_free(a);
        store_encode(is);
        a = store_ask(is);
        assert_string_equal(a->fallback, "");
        inferscale_answer_free(a);
        inferscale_close(is);
        assert_true(count_files(".seg") > old_files * (size_t)(i + 1));
    }
    is = store_open(home, NULL, NULL, false);
    g.keep = keep; /* by hand, as du shows it; embeddings are not named, so they would go */
    g.dry_run = 1;
    OK(inferscale_gc(is, &g));
    assert_int_equal(g.view_files, count_files(".seg") - old_files);
    g.dry_run = 0;
    OK(inferscale_gc(is, &g));
    assert_int_equal(count_files(".seg"), old_files);
    assert_true(g.view_embeddings > 0);
    inferscale_close(is);
    store_expect_sound(home);
}

static bool kept(int64_t item)
{
    char sql[200];

    snprintf(sql, sizeof sql, "SELECT count(*) FROM segments WHERE item_id = %lld AND lead = 0", (long long)item);
    return store_sql_int(home, sql) > 0;
}

static void a_budget_takes_the_least_useful_first_and_says_so(void **state)
{
    inferscale_gc_options o = INFERSCALE_GC_OPTIONS_INIT;
    int64_t pinned = store_sql_int(home, "SELECT min(item_id) FROM fact_versions WHERE partition_id = 1");
    int64_t lapsed = store_sql_int(home, "SELECT max(item_id) FROM fact_versions WHERE partition_id = 1");
    inferscale *is;
    char sql[300];

    snprintf(sql, sizeof sql, "UPDATE items SET pinned = 1 WHERE id = %lld; UPDATE fact_versions SET expires = 1714521700 WHERE item_id = %lld;"
             "UPDATE segments SET write_time = id", (long long)pinned, (long long)lapsed);
    store_sql(home, sql);
    is = store_open(home, NULL, NULL, false);
    OK(inferscale_gc(is, &o));
    uint64_t whole = o.vault_bytes;
    o.max_bytes = whole - 1; /* one file too much */
    OK(inferscale_gc(is, &o));
    assert_true(o.evicted_files >= 1);
    assert_true(o.vault_bytes <= o.max_bytes);
    assert_false(kept(lapsed) && store_sql_int(home, "SELECT count(*) FROM segments WHERE lead = 1") == 0);
    o.max_bytes = whole / 4;
    OK(inferscale_gc(is, &o));
    assert_true(o.evicted_files > 3);
    assert_true(o.vault_bytes <= whole / 4);
    assert_true(kept(pinned));
    assert_false(kept(lapsed));
    inferscale_answer *a = store_ask(is);
    assert_non_null(strstr(a->fallback, "no KV"));
    assert_non_null(strstr(a->text, "on day number 3")); /* the facts are the same */
    inferscale_answer_free(a);
    inferscale_close(is);
    store_expect_sound(home);
    is = store_open(home, NULL, NULL, false);
    store_encode(is);
    a = store_ask(is);
    assert_string_equal(a->fallback, "");
    inferscale_answer_free(a);
    o.max_bytes = 1;
    OK(inferscale_gc(is, &o));
    assert_int_equal(count_files(".seg"), 0);
    inferscale_close(is);
    store_expect_sound(home);
}

static void space_is_given_back(void **state)
{
    inferscale *is = store_open(home, NULL, NULL, false);
    inferscale_gc_options o = INFERSCALE_GC_OPTIONS_INIT;
    inferscale_usage_report *u = NULL;
    char *text = malloc(40001);

    memset(text, 'x', 40000);
    text[40000] = 0;
    for (int i = 0; i < 30; i++) {
        snprintf(text, 12, "%010d", i);
        text[10] = ' ';
        store_fact(is, &store_ben, text);
    }
    free(text);
    OK(inferscale_forget_all(is, &store_ben, NULL));
    OK(inferscale_gc(is, &o));
    assert_true(o.bank_freed_bytes > 800000);
    OK(inferscale_usage(is, NULL, &u));
    assert_int_equal(u->bank_free_bytes, 0);
    inferscale_usage_free(u);
    o.compact = 1;
    OK(inferscale_gc(is, &o));
    inferscale_close(is);
    store_expect_sound(home);
}

/* ---- du ------------------------------------------------------------------------------------------------------------------------ */

static void usage_adds_up(void **state)
{
    inferscale *is;
    inferscale_usage_report *u = NULL, *one = NULL;
    uint64_t segments = 0, text = 0, anna = 0, anna_alone = 0, real = 0;
    size_t n;
    struct stat s;

    file_unnamed();
    is = store_open(home, NULL, NULL, true);
    OK(inferscale_usage(is, NULL, &u));
    char **files = store_files(home, ".seg", &n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(stat(files[i], &s), 0);
        real += (uint64_t)s.st_size;
    }
    store_files_free(files, n);
    for (size_t i = 0; i < u->n; i++) {
        if (strcmp(u->rows[i].what, "segments") == 0) segments += u->rows[i].bytes;
        if (strcmp(u->rows[i].what, "text") == 0) text += u->rows[i].n;
        if (strcmp(u->rows[i].owner, "anna") == 0) anna += u->rows[i].bytes;
        assert_string_equal(u->rows[i].owner_kind, "user");
        assert_string_equal(u->rows[i].tenant, strcmp(u->rows[i].owner, "ben") == 0 ? "north" : "");
    }
    assert_int_equal(u->vault_bytes, real);
    assert_int_equal(segments + u->unnamed_bytes, real);
    assert_true(u->unnamed_bytes > 0);
    assert_int_equal(text, FACTS + FACTS / 2 + 3);
    assert_int_equal(stat(scratch_path(home, "bank.sqlite"), &s), 0);
    assert_int_equal(u->bank_bytes, s.st_size);
    OK(inferscale_usage(is, &store_anna, &one));
    for (size_t i = 0; i < one->n; i++) {
        assert_string_equal(one->rows[i].owner, "anna");
        anna_alone += one->rows[i].bytes;
    }
    assert_int_equal(anna, anna_alone);
    inferscale_usage_free(u);
    inferscale_usage_free(one);
    inferscale_close(is);
}

/* ---- rebuild --------------------------------------------------------------------------------------------------------------------- */

typedef struct watched { uint64_t calls, last_done, last_total; bool backwards; } watched;

static int watch(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    watched *w = ctx;

    if (done > total) w->backwards = true;
    w->calls++;
    w->last_done = done;
    w->last_total = total;
    return 0;
}

static int stop_soon(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    return ++*(int *)ctx > 3;
}

static void views_are_made_anew(void **state)
{
    inferscale_rebuild_options o = INFERSCALE_REBUILD_OPTIONS_INIT;
    watched w = { 0 };
    inferscale *is;
    int calls = 0;

    payload_flipped();
    store_sql(home, "UPDATE embeddings SET q = zeroblob(length(q))");
    is = store_open(home, NULL, NULL, false);
    o.what = INFERSCALE_REBUILD_EMBEDDINGS;
    o.on_progress = watch;
    o.progress_ctx = &w;
    OK(inferscale_rebuild(is, NULL, &o));
    assert_int_equal(o.owners, 2);
    assert_int_equal(o.embedded, FACTS + FACTS / 2 + 3);
    assert_int_equal(o.facts_encoded, 0);
    assert_true(w.calls > 0 && !w.backwards);
    assert_int_equal(w.last_done, w.last_total);
    assert_int_equal(store_sql_int(home, "SELECT count(*) FROM embeddings WHERE q = zeroblob(length(q))"), 0);
    o.what = INFERSCALE_REBUILD_KV;
    OK(inferscale_rebuild(is, &store_anna, &o));
    assert_int_equal(o.owners, 1);
    assert_true(o.facts_encoded >= FACTS);
    assert_true(o.tokens_computed > 0);
    o.what = 0;
    OK(inferscale_rebuild(is, NULL, &o));
    assert_true(o.embedded && o.facts_encoded);
    o.on_progress = stop_soon;
    o.progress_ctx = &calls;
    FAILS(E_CANCELLED, inferscale_rebuild(is, NULL, &o));
    inferscale_answer *a = store_ask(is);
    assert_string_equal(a->fallback, "");
    assert_string_equal(a->text, answer);
    inferscale_answer_free(a);
    inferscale_close(is);
    store_expect_sound(home); /* the flipped file was written anew */
}

/* ---- Beside others ----------------------------------------------------------------------------------------------------------------- */

static atomic_int stop;

static void *remember_and_forget(void *arg)
{
    inferscale *is = arg;

    for (int i = 0; !atomic_load(&stop); i++) {
        char text[80];
        int64_t id;

        snprintf(text, sizeof text, "Anna has thought number %d.", i);
        id = store_fact(is, &store_anna, text);
        OK(inferscale_encode(is, &store_anna, NULL));
        if (i % 2) OK(inferscale_forget(is, &store_anna, &id, 1, NULL));
    }
    return NULL;
}

static void looking_after_disturbs_nobody(void **state)
{
    inferscale *is = store_open(home, NULL, NULL, false), *other = store_open(home, NULL, NULL, false);
    inferscale_gc_options g = INFERSCALE_GC_OPTIONS_INIT;
    pthread_t t;

    atomic_store(&stop, 0);
    assert_int_equal(pthread_create(&t, NULL, remember_and_forget, is), 0);
    for (int i = 0; i < 12; i++) {
        inferscale_fsck_report *r = NULL;

        OK(inferscale_fsck(other, NULL, &r));
        if (!r->ok) store_print(r);
        assert_true(r->ok); /* work in progress is no damage */
        inferscale_fsck_free(r);
        OK(inferscale_gc(other, &g));
        assert_int_equal(g.unnamed_files + g.bad_files + g.view_files + g.evicted_files, 0);
        inferscale_answer *a = store_ask(other); /* what is being remembered may not have its KV yet */
        assert_true(a->tokens_injected > 0);
        inferscale_answer_free(a);
    }
    atomic_store(&stop, 1);
    pthread_join(t, NULL);
    inferscale_close(other);
    inferscale_close(is);
    store_expect_sound(home);
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
        cmocka_unit_test_setup(gc_removes_what_nobody_names_and_nothing_else, fresh),
        cmocka_unit_test_setup(another_model_is_another_view_beside_the_old_one, fresh),
        cmocka_unit_test_setup(another_codec_or_system_text_is_another_view, fresh),
        cmocka_unit_test_setup(a_budget_takes_the_least_useful_first_and_says_so, fresh),
        cmocka_unit_test_setup(space_is_given_back, fresh),
        cmocka_unit_test_setup(usage_adds_up, fresh),
        cmocka_unit_test_setup(views_are_made_anew, fresh),
        cmocka_unit_test_setup(looking_after_disturbs_nobody, fresh),
    };

    return cmocka_run_group_tests(tests, make_template, remove_template);
}
