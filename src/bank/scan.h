/* scan.h - all bytes of the bank's files, and all values that its rows hold: for the proof of forgetting. */
#ifndef IS_BANK_SCAN_H
#define IS_BANK_SCAN_H

#include "bank/bank.h"

enum { IS_SCAN_DATABASE = 1, IS_SCAN_SHARED = 2 };

/* begin: a file's bytes follow, in order, in pieces. value: a text or blob of a living row (once more for every index that repeats
 * it); id: of the item where the table has one, else of the row, else 0. The write lock is held: no call may write to the bank. */
typedef struct is_bank_scan {
    void *ctx;
    is_status (*begin)(void *ctx, int file);
    is_status (*bytes)(void *ctx, const uint8_t *p, size_t n);
    is_status (*value)(void *ctx, const char *table, int64_t id, const void *p, size_t n);
} is_bank_scan;

/* Empties the log, zeroes the unused bytes inside the database's pages, and hands everything out, all in one state of the bank. Other
 * writers wait meanwhile. E_BUSY: the log could not be emptied, or writers left no pause, in wait_ms. */
is_status is_bank_scan_all(const char *path, uint32_t wait_ms, const is_bank_scan *out);

/* Do the books of any owner hold this segment right now? */
is_status is_bank_has_segment(is_bank *b, const uint8_t name[IS_HASH_BYTES], bool *has);

#endif
