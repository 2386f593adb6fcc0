/* maintain.c - the lists that checking, cleaning, copying and measuring work on. */
#include "api/maintain.h"

#include <string.h>

#include "base/mem.h"
#include "base/sort.h"

is_status is_tick(inferscale_progress_fn fn, void *ctx, uint64_t done, uint64_t total, const char *work)
{
    if (!fn || !fn(ctx, done, total, work)) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_CANCELLED, "%s was cancelled; what is done is kept, run it again to go on", work);
}

/* ---- Files --------------------------------------------------------------------------------------------------------------- */

is_status is_vault_files_add(is_vault_files *l, const uint8_t name[IS_HASH_BYTES], uint64_t bytes)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        is_vault_file *more = is_realloc(l->files, cap * sizeof *more);

        if (!more) return is_fail(INFERSCALE_E_NOMEM, "no memory for the list of a vault's files; free some memory and try again");
        l->files = more;
        l->cap = cap;
    }
    memcpy(l->files[l->n].name, name, IS_HASH_BYTES);
    l->files[l->n++].bytes = bytes;
    l->bytes += bytes;
    return INFERSCALE_OK;
}

static int by_name(const void *a, const void *b)
{
    return memcmp(((const is_vault_file *)a)->name, ((const is_vault_file *)b)->name, IS_HASH_BYTES);
}

void is_vault_files_sort(is_vault_files *l)
{
    is_sort(l->files, l->n, sizeof *l->files, by_name);
}

const is_vault_file *is_vault_files_find(const is_vault_files *l, const uint8_t name[IS_HASH_BYTES])
{
    is_vault_file key;

    memcpy(key.name, name, IS_HASH_BYTES);
    return is_find(&key, l->files, l->n, sizeof key, by_name);
}

void is_vault_files_free(is_vault_files *l)
{
    is_free(l->files);
    *l = (is_vault_files){ 0 };
}

static is_status add_segment(void *ctx, const is_vault_entry *e)
{
    return e->kind == IS_VAULT_SEGMENT ? is_vault_files_add(ctx, e->name, e->stat.bytes) : INFERSCALE_OK;
}

is_status is_vault_files_read(is_vault *v, is_vault_files *out)
{
    is_status st;

    *out = (is_vault_files){ 0 };
    st = is_vault_walk(v, add_segment, out);
    if (st == INFERSCALE_OK) is_vault_files_sort(out);
    else is_vault_files_free(out);
    return st;
}

/* ---- Books --------------------------------------------------------------------------------------------------------------- */

const is_book *is_book_find(const is_book *books, size_t n, const uint8_t name[IS_HASH_BYTES])
{
    size_t low = 0, high = n;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (memcmp(books[mid].name, name, IS_HASH_BYTES) < 0) low = mid + 1;
        else high = mid;
    }
    return low < n && memcmp(books[low].name, name, IS_HASH_BYTES) == 0 ? &books[low] : NULL;
}

size_t is_book_run(const is_book *books, size_t n, size_t i)
{
    size_t run = 1;

    while (i + run < n && memcmp(books[i].name, books[i + run].name, IS_HASH_BYTES) == 0) run++;
    return run;
}

bool is_name_in(const is_names *names, const uint8_t name[IS_HASH_BYTES])
{
    for (size_t i = 0; i < names->n; i++)
        if (memcmp(names->names[i], name, IS_HASH_BYTES) == 0) return true;
    return false;
}

is_status is_handle_drop_books(inferscale *is, const is_book *const *books, size_t n)
{
    is_names names = { .names = is_malloc((n + 1) * sizeof *names.names) };
    is_status st, one;

    if (!names.names) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) memcpy(names.names[names.n++], books[i]->name, IS_HASH_BYTES);
    st = is_bank_drop_books(is->bank, books, n);
    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++) {
        one = is_vault_remove(is->vault, names.names[i]);
        if (one != INFERSCALE_OK) st = one;
    }
    if (st == INFERSCALE_OK) st = is_bank_doomed_done(is->bank, &names);
    is_names_free(&names);
    return st;
}
