/* gaps.h - the unused middles of the database's pages, kept empty.
 *
 * A page of a table or index holds its list of cells at its beginning and the cells at its end. When rows move to another page or within
 * one, SQLite leaves their bytes in the middle; secure_delete zeroes what is deleted, not these copies. They would outlive their rows.
 * So every page that goes to the database file goes there with its middle zeroed: no byte in it means anything to SQLite. Where it
 * comes from, the log, is emptied when something is forgotten (wal.c), and so are the pages that the connection remembers. */
#ifndef IS_BANK_GAPS_H
#define IS_BANK_GAPS_H

#include <sqlite3.h>

#include "bank/bank.h"

/* Where the middle of a page of a table or index is; h: its header's place (100 on page 1, else 0). false: it is none, or damaged. */
bool bank_gap(const uint8_t *page, size_t bytes, size_t h, size_t *from, size_t *to);

/* From now on pages go through this connection to the main database's file with their middles zeroed. *methods (NULL at first) is what
 * is_free takes once the connection is closed; used again for another connection to the same file. An SQLite result code. */
struct bank_file_methods;
int bank_keep_gaps_empty(sqlite3 *db, struct bank_file_methods **methods);
/* Zeroes the copy of the page that went to the file last. methods may be NULL; the connection is not at work. */
void bank_clear_page(struct bank_file_methods *methods);

/* Zeroes the middles that are in the file already (scan.c): banks up to version 4 were written without this. The caller commits something
 * afterwards, so that other connections read their pages again. E_BUSY: others keep the log from being emptied. */
is_status bank_sweep_gaps(is_bank *b, uint32_t wait_ms);

#endif
