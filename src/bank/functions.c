/* functions.c - what the bank's statements call that SQLite does not have. */
#include <string.h>

#include "bank/sql.h"

/* vector_sum(item, version, scale, q): the checksum of an embedding's row. The item is in it: a vector that came to stand beside another
 * item is wrong too. NULL (no column allows it, nothing equals it) for what no vector is. */
static void vector_sum(sqlite3_context *c, int n, sqlite3_value **v)
{
    uint8_t head[32] = { 0 };
    const double scale = sqlite3_value_double(v[2]);
    const int64_t item = sqlite3_value_int64(v[0]), version = sqlite3_value_int64(v[1]);
    const void *q = sqlite3_value_blob(v[3]);
    uint64_t sum;

    if (!q) {
        sqlite3_result_null(c);
        return;
    }
    sum = is_checksum(q, (size_t)sqlite3_value_bytes(v[3]));
    memcpy(head, &item, sizeof item);
    memcpy(head + 8, &version, sizeof version);
    memcpy(head + 16, &scale, sizeof scale);
    memcpy(head + 24, &sum, sizeof sum);
    sqlite3_result_int64(c, (int64_t)is_checksum(head, sizeof head));
}

bool is_bank_one_in(int64_t id, uint32_t n)
{
    uint64_t h = (uint64_t)id * 0x9e3779b97f4a7c15u; /* Fibonacci hashing: neighbouring ids spread evenly */

    return n > 0 && (h >> 33) % n == 0;
}

/* one_in(id, n) */
static void one_in(sqlite3_context *c, int n, sqlite3_value **v)
{
    sqlite3_result_int(c, is_bank_one_in(sqlite3_value_int64(v[0]), (uint32_t)sqlite3_value_int64(v[1])));
}

int bank_add_functions(sqlite3 *db)
{
    const int flags = SQLITE_UTF8 | SQLITE_DETERMINISTIC;
    int rc = sqlite3_create_function(db, "vector_sum", 4, flags, NULL, vector_sum, NULL, NULL);

    return rc != SQLITE_OK ? rc : sqlite3_create_function(db, "one_in", 2, flags, NULL, one_in, NULL, NULL);
}
