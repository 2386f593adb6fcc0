/* store_kit.h - whole stores for tests of what looks after them: filling, reading back as bytes, damaging. */
#ifndef TESTS_STORE_KIT_H
#define TESTS_STORE_KIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "inferscale.h"

extern const inferscale_scope store_anna, store_ben;

/* The mock engine; model and embedder NULL = its first one. No second stage: means of rows are none that the mock made. Asserts. */
inferscale *store_open(const char *home, const char *model, const char *embedder, bool read_only);
/* For what store_open does not say: its options, to be changed before inferscale_open. */
inferscale_options store_options(const char *home);
/* n facts and a few turns for anna, some for ben; encoded if asked. */
void store_fill(inferscale *is, int n, bool encode);
int64_t store_fact(inferscale *is, const inferscale_scope *who, const char *text);
void store_encode(inferscale *is);
/* Everything that is remembered of both owners, with ids, versions and times, as text; free() it. Equal text = equal memory. */
char *store_dump(inferscale *is);
/* An answer to the same question of anna; what was injected and the fallback are checked by the caller. inferscale_answer_free. */
inferscale_answer *store_ask(inferscale *is);

/* Runs fsck in a store of its own handle; inferscale_fsck_free. */
inferscale_fsck_report *store_fsck(const char *home, bool repair);
size_t store_count_kind(const inferscale_fsck_report *r, const char *kind);
void store_print(const inferscale_fsck_report *r);
/* No problem at all, or the test fails with what there is. */
void store_expect_sound(const char *home);

/* SQL past the library, as another program could: no foreign keys, no checks. */
void store_sql(const char *home, const char *sql);
int64_t store_sql_int(const char *home, const char *sql);
/* Every row of the tables that hold the truth, as text; free() it. Damaged ones too: this asks no library. */
char *store_truth(const char *home);
/* Paths of the vault's files that end with suffix, sorted; free() each and the list. */
char **store_files(const char *home, const char *suffix, size_t *n);
void store_files_free(char **files, size_t n);
void store_write(const char *path, const void *bytes, size_t n);
void *store_read(const char *path, size_t *n); /* free() */
/* cp -a, with what is there removed before. */
void store_copy(const char *from, const char *to);

#endif
