/* tombstones.c - which texts were forgotten, without the texts: keyed hashes of them, normalised, so that the same thing said in
 * slightly other letters is not extracted from a conversation again. Nobody without the partition's key can test a guess. */
#include <stdint.h>
#include <string.h>

#include "bank/sql.h"
#include "base/clock.h"
#include "base/mem.h"

/* Words in lower case with one space between them: letters and digits of ASCII, and every byte beyond it, are words. */
char *is_bank_normalised(const char *text)
{
    size_t n = 0;
    char *out = is_malloc(strlen(text) + 1);

    if (!out) return NULL;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z'), word = letter || (*c >= '0' && *c <= '9') || *c >= 0x80;

        if (word) out[n++] = (char)(letter ? *c | 0x20 : *c);
        else if (n && out[n - 1] != ' ') out[n++] = ' ';
    }
    if (n && out[n - 1] == ' ') n--;
    out[n] = 0;
    return out;
}

static is_status hash_of(const is_partition *p, const char *text, uint8_t out[IS_HASH_BYTES])
{
    static const char what[] = "inferscale tombstone 1";
    char *normalised = is_bank_normalised(text);
    is_hash *h = NULL;
    is_status st;

    if (!normalised) return is_fail(INFERSCALE_E_NOMEM, "no memory to mark a text as forgotten; free some and try again");
    st = is_hash_new(p->key, &h);
    if (st == INFERSCALE_OK) {
        /* Nothing but signs ("?!"): they are all there is to tell one such text from another. */
        const char *words = *normalised ? normalised : text;

        is_hash_field(h, what, sizeof what);
        is_hash_field(h, words, strlen(words));
        is_hash_end(h, out);
    }
    is_free(normalised);
    return st;
}

is_status bank_set_tombstone(is_bank *b, const is_partition *p, const char *text)
{
    uint8_t hash[IS_HASH_BYTES];
    sql q;

    IS_TRY(hash_of(p, text, hash));
    q = sql_open(b, "INSERT INTO tombstones(partition_id, hash, write_time) VALUES(?1, ?2, ?3) ON CONFLICT DO NOTHING");
    sql_i64(&q, p->id);
    sql_blob(&q, hash, sizeof hash);
    sql_i64(&q, is_now_epoch());
    return sql_run(&q, NULL);
}

is_status bank_lift_tombstone(is_bank *b, const is_partition *p, const char *text, bool *lifted)
{
    uint8_t hash[IS_HASH_BYTES];
    int64_t changes = 0;
    is_status st;
    sql q;

    *lifted = false;
    IS_TRY(hash_of(p, text, hash));
    q = sql_open(b, "DELETE FROM tombstones WHERE partition_id = ?1 AND hash = ?2");
    sql_i64(&q, p->id);
    sql_blob(&q, hash, sizeof hash);
    st = sql_run(&q, &changes);
    *lifted = changes > 0;
    return st;
}

is_status is_bank_is_tombstoned(is_bank *b, const is_partition *p, const char *text, bool *forgotten)
{
    uint8_t hash[IS_HASH_BYTES];
    is_status st;
    sql q;

    *forgotten = false;
    IS_TRY(bank_check_text("text", SIZE_MAX, text));
    IS_TRY(hash_of(p, text, hash));
    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT 1 FROM tombstones WHERE partition_id = ?1 AND hash = ?2");
    sql_i64(&q, p->id);
    sql_blob(&q, hash, sizeof hash);
    *forgotten = sql_one_i64(&q, 0, &st) != 0;
    bank_unlock(b);
    return st;
}
