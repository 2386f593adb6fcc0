/* maintain.h - what checking, cleaning, copying and measuring a store share. */
#ifndef IS_API_MAINTAIN_H
#define IS_API_MAINTAIN_H

#include "api/handle.h"
#include "bank/maintain.h"
#include "kv/vault_files.h"

/* The segment files of the vault, sorted by name. */
typedef struct is_vault_file {
    uint8_t name[IS_HASH_BYTES];
    uint64_t bytes;
} is_vault_file;

typedef struct is_vault_files {
    is_vault_file *files;
    size_t n, cap;
    uint64_t bytes;
} is_vault_files;

/* Appends; is_vault_files_sort once all are there. */
is_status is_vault_files_add(is_vault_files *l, const uint8_t name[IS_HASH_BYTES], uint64_t bytes);
void is_vault_files_sort(is_vault_files *l);
const is_vault_file *is_vault_files_find(const is_vault_files *l, const uint8_t name[IS_HASH_BYTES]);
void is_vault_files_free(is_vault_files *l);
/* All of the vault. */
is_status is_vault_files_read(is_vault *v, is_vault_files *out);

/* The first row of books[n] (sorted by name) with this name, or NULL. */
const is_book *is_book_find(const is_book *books, size_t n, const uint8_t name[IS_HASH_BYTES]);
/* How many rows from books[i] on have its name. */
size_t is_book_run(const is_book *books, size_t n, size_t i);

bool is_name_in(const is_names *names, const uint8_t name[IS_HASH_BYTES]);

/* Takes the books' rows of these names away, then the files, then their names from the list of what must go: a crash in between leaves
 * nothing that the next opening does not finish. books[n]: one row a name. */
is_status is_handle_drop_books(inferscale *is, const is_book *const *books, size_t n);

/* Progress, or E_CANCELLED with a sentence that begins with `work`. fn may be NULL. */
is_status is_tick(inferscale_progress_fn fn, void *ctx, uint64_t done, uint64_t total, const char *work);

#endif
