#include "support/bank_kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"

const uint8_t kit_model[IS_HASH_BYTES] = { 1, 2, 3 }, kit_other_model[IS_HASH_BYTES] = { 9 };

int bank_kit_setup(void **state)
{
    bank_kit *k = calloc(1, sizeof *k);

    k->folder = scratch_make();
    k->path = strdup(scratch_path(k->folder, "bank.sqlite"));
    k->anna = (inferscale_scope){ .user = "anna" };
    k->ben = (inferscale_scope){ .user = "ben" };
    bank_kit_reopen(k, false);
    OK(is_bank_partition(k->bank, &k->anna, true, &k->pa));
    OK(is_bank_partition(k->bank, &k->ben, true, &k->pb));
    *state = k;
    return 0;
}

int bank_kit_teardown(void **state)
{
    bank_kit *k = *state;

    is_mem_fail_at(0);
    is_bank_close(k->bank);
    scratch_remove(k->folder);
    free((char *)k->path);
    free(k);
    return 0;
}

void bank_kit_reopen(bank_kit *k, bool read_only)
{
    is_bank_close(k->bank);
    k->bank = NULL;
    OK(is_bank_open(k->path, read_only, &k->bank));
}

int64_t kit_fact(bank_kit *k, const is_partition *p, const inferscale_scope *s, const char *text)
{
    inferscale_fact f = { .text = text };
    inferscale_event e;

    OK(is_bank_add_facts(k->bank, p, s, &f, 1, &e));
    assert_int_equal(e.event, INFERSCALE_EVENT_ADD);
    assert_true(e.id > 0);
    return e.id;
}

int64_t kit_turn(bank_kit *k, const is_partition *p, const inferscale_scope *s, const char *conversation, const char *text)
{
    inferscale_turn t = { .conversation = conversation, .text = text };
    int64_t id = 0;

    OK(is_bank_add_turns(k->bank, p, s, &t, 1, &id));
    assert_true(id > 0);
    return id;
}

void kit_name(int tag, uint8_t name[IS_HASH_BYTES])
{
    is_hash_once(NULL, &tag, sizeof tag, name);
}

is_status kit_segment_put(bank_kit *k, const is_partition *p, int64_t fact, const char *policy, int tag, const is_dep *deps, size_t n)
{
    is_partition now = *p;
    is_segment_row row = { .fact_id = fact, .version = kit_version(k, p, fact), .n_tokens = 10, .n_context = 20, .n_computed = 30,
                           .bytes = 40 };

    OK(is_bank_partition_refresh(k->bank, &now));
    kit_name(tag, row.name);
    snprintf(row.policy, sizeof row.policy, "%s", policy);
    return is_bank_put_segment(k->bank, p, now.epoch, kit_model, &row, deps, n);
}

inferscale_list *kit_get(bank_kit *k, const is_partition *p, int64_t id)
{
    inferscale_list *l = NULL;

    OK(is_bank_get(k->bank, p, &id, 1, &l));
    assert_int_equal(l->n, 1);
    return l;
}

int kit_version(bank_kit *k, const is_partition *p, int64_t id)
{
    inferscale_list *l = NULL;
    int version;

    OK(is_bank_get(k->bank, p, &id, 1, &l));
    version = l->n ? l->items[0].version : 0;
    inferscale_list_free(l);
    return version;
}

bool kit_named(const is_names *names, int tag)
{
    uint8_t name[IS_HASH_BYTES];

    kit_name(tag, name);
    for (size_t i = 0; i < names->n; i++)
        if (memcmp(names->names[i], name, sizeof name) == 0) return true;
    return false;
}

bool kit_on_disk(const bank_kit *k, const char *needle)
{
    static const char *const suffixes[] = { "", "-wal", "-journal" };
    bool found = false;

    for (size_t i = 0; i < 3; i++) {
        char path[512];
        uint8_t *data = NULL;
        size_t n = 0;

        snprintf(path, sizeof path, "%s%s", k->path, suffixes[i]);
        if (!is_fs_posix()->exists(is_fs_posix(), path)) continue;
        OK(is_file_read_all(is_fs_posix(), path, 1 << 28, &data, &n));
        found = found || memmem(data, n, needle, strlen(needle)) != NULL;
        is_free(data);
    }
    return found;
}
