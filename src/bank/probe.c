/* probe.c - is the bank of a process that has it open for long still there and sound? A connection of its own looks: it reads the file,
 * where the handle's may go on from what it holds in memory. */
#include "bank/maintain.h"
#include "bank/sql.h"
#include "base/words.h"

/* Another file, or none, is at the path: SQLite would go on in the one that nobody will ever find again. */
static is_status at_its_place(is_bank *b)
{
    int moved = 0;

    IS_TRY(bank_lock(b));
    if (sqlite3_file_control(b->db, "main", SQLITE_FCNTL_HAS_MOVED, &moved) != SQLITE_OK) moved = 0; /* it cannot be told here */
    bank_unlock(b);
    if (!moved) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_NOTFOUND, "the bank %s was moved away or deleted while it is open; put it back, or restore a backup, and "
                   "start again", b->path);
}

static is_status read_some(is_bank *b)
{
    static const char *const literals[] = { "SELECT id FROM partitions LIMIT 1", "SELECT id FROM items LIMIT 1",
                                            "SELECT text FROM fact_versions LIMIT 1" };

    for (size_t i = 0; i < sizeof literals / sizeof *literals; i++) {
        sql q = sql_once(b, literals[i]);

        IS_TRY(sql_run(&q, NULL));
    }
    return INFERSCALE_OK;
}

/* A statement has found damage: is it still there? Everything is read, so only then. */
static is_status still_damaged(is_bank *b, is_bank *fresh)
{
    bool ok = false;

    IS_TRY(is_bank_check(fresh, &ok));
    if (!ok)
        return is_fail(INFERSCALE_E_CORRUPT, "the bank %s is damaged; %s says where, a backup mends it", b->path,
                       is_words(IS_CALL_FSCK));
    __atomic_store_n(&b->found_damage, 0, __ATOMIC_RELAXED);
    return INFERSCALE_OK;
}

is_status is_bank_probe(is_bank *b)
{
    is_bank *fresh = NULL;
    is_status st;

    if (b->frozen) return INFERSCALE_OK; /* its file does not change */
    IS_TRY(at_its_place(b));
    IS_TRY(is_bank_open(b->path, true, &fresh));
    st = read_some(fresh);
    if (st == INFERSCALE_OK && __atomic_load_n(&b->found_damage, __ATOMIC_RELAXED)) st = still_damaged(b, fresh);
    is_bank_close(fresh);
    return st;
}
