/* caches.c - dropping the pages that SQLite keeps in memory, for every bank of the process.
 *
 * Each connection caches pages of the file. After a forgetting those of other connections still hold
 * the text, until they read next, which may be never. So the thread that forgets drops them all. It
 * does not wait for a bank in use: it leaves a mark there, and the call that holds the bank's lock
 * drops the pages when it gives the lock back. A bank of another store loses pages that it reads
 * again: comparing files would cost more than that. */
#include "bank/gaps.h"
#include "bank/sql.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static is_bank *first;

void bank_enter_list(is_bank *b)
{
    pthread_mutex_lock(&list_lock);
    b->next = first;
    if (first) first->prev = b;
    first = b;
    pthread_mutex_unlock(&list_lock);
}

void bank_leave_list(is_bank *b)
{
    pthread_mutex_lock(&list_lock);
    if (b->prev) b->prev->next = b->next;
    else if (first == b) first = b->next;
    if (b->next) b->next->prev = b->prev;
    b->prev = b->next = NULL;
    pthread_mutex_unlock(&list_lock);
}

/* The mark is set before the lock is tried, and looked at after the lock was given back: whoever
 * comes second sees it. */
void bank_drop_if_asked(is_bank *b)
{
    while (__atomic_load_n(&b->drop, __ATOMIC_SEQ_CST) && pthread_mutex_trylock(&b->lock) == 0) {
        __atomic_store_n(&b->drop, false, __ATOMIC_SEQ_CST);
        sqlite3_db_release_memory(b->db);
        bank_clear_page(b->file_methods);
        pthread_mutex_unlock(&b->lock);
    }
}

void is_bank_drop_caches(void)
{
    pthread_mutex_lock(&list_lock);
    for (is_bank *b = first; b; b = b->next) {
        __atomic_store_n(&b->drop, true, __ATOMIC_SEQ_CST);
        bank_drop_if_asked(b);
    }
    pthread_mutex_unlock(&list_lock);
}
