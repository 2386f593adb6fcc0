/* narrow.c - rows that were stored in f32 where the engine's cache is narrower: rounded,
 * renamed, put in the place of the old ones.
 *
 * Engine llama's `auto` stored f32 up to commit 287338c, twice the bytes. Computing such rows
 * again would cost hours of a large memory's time; rounding them gives the bits that encoding
 * into the narrower codec gives, because that rounds the same f32 values (tests/test_narrow.c).
 * That is promised of one capture: a capture whose context was itself stored rows saw these in
 * f32 in the one case, and rounded in the other.
 *
 * The new name is a keyed hash of the old one, which stands for all that the rows were computed
 * from, and of the codec. The order is is_keep_made's: a file is durable before the books name
 * it, and doomed until they do. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "encode/encode.h"

enum { ROWS_AT_A_TIME = 16 };

const uint8_t *is_encode_wide_view(const is_profile *profile)
{
    return profile->codec == IS_CODEC_F32 ? NULL : profile->in_codec[IS_CODEC_F32];
}

static is_status narrow_name(const is_encoder *enc, const is_partition *p, const uint8_t *from, uint8_t to[IS_HASH_BYTES])
{
    static const char what[] = "inferscale segment in a narrower codec 1";
    is_hash *h = NULL;

    IS_TRY(is_hash_new(p->key, &h));
    is_hash_field(h, what, sizeof what);
    is_hash_field(h, from, IS_HASH_BYTES);
    is_hash_u64(h, enc->profile->codec);
    is_hash_end(h, to);
    return INFERSCALE_OK;
}

/* What the old file holds, rounded, as a file of its own. A file that is gone, damaged or out of the codec's range makes the row go: the
 * fact is encoded again, or served as text. */
static is_status write_one(const is_encoder *enc, const is_partition *p, is_recode *r, bool *written, is_narrowing *n)
{
    is_segment *wide = NULL, *narrow = NULL;
    is_status st = narrow_name(enc, p, r->from, r->to);

    if (st == INFERSCALE_OK) st = is_vault_get(enc->vault, r->from, is_engine_describe(enc->engine)->fingerprint, &wide);
    if (st == INFERSCALE_OK) st = is_segment_recode(wide, r->to, enc->profile->codec, &narrow);
    if (st == INFERSCALE_E_NOTFOUND || st == INFERSCALE_E_UNSUPPORTED) {
        is_log(IS_LOG_WARN, "rows in f32 are not taken over, their fact is encoded again: %s", is_error());
        r->keep = false;
        st = INFERSCALE_OK;
    } else if (st == INFERSCALE_OK) {
        r->bytes = is_segment_bytes(narrow);
        n->bytes_before += is_segment_bytes(wide);
        n->bytes_after += r->bytes;
        n->files++;
        st = is_bank_doom(enc->bank, p, r->to);
        *written = !is_vault_has(enc->vault, r->to);
        if (st == INFERSCALE_OK) st = is_vault_put(enc->vault, narrow);
    }
    is_segment_unref(wide);
    is_segment_unref(narrow);
    return st;
}

/* Rows of equal names share a file. */
static const is_recode *same_before(const is_recode *rows, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (rows[k].keep && memcmp(rows[k].from, rows[i].from, IS_HASH_BYTES) == 0) return &rows[k];
    return NULL;
}

static is_status write_all(const is_encoder *enc, const is_partition *p, is_recode *rows, size_t n_rows, bool *written, is_narrowing *n)
{
    is_status st = INFERSCALE_OK;

    for (size_t i = 0; i < n_rows && st == INFERSCALE_OK; i++) {
        const is_recode *same = rows[i].keep ? same_before(rows, i) : NULL;

        if (i) st = is_keep_goes_on(enc, p);
        if (st != INFERSCALE_OK) break;
        if (same) {
            memcpy(rows[i].to, same->to, IS_HASH_BYTES);
            rows[i].bytes = same->bytes;
        } else if (rows[i].keep) {
            st = write_one(enc, p, &rows[i], &written[i], n);
        }
    }
    return st;
}

/* The books did not take them: what was written goes again before the lease does. The sentence stays that of the failure. */
static is_status withdraw(const is_encoder *enc, is_status st, const is_recode *rows, const bool *written, size_t n_rows)
{
    char why[1024];

    snprintf(why, sizeof why, "%s", is_error());
    for (size_t i = 0; i < n_rows; i++)
        if (written[i] && is_vault_remove(enc->vault, rows[i].to) != INFERSCALE_OK)
            is_log(IS_LOG_WARN, "encode: a file that the books refused stays until the store is opened again: %s", is_error());
    return is_fail(st, "%s", why);
}

static is_status remove_old(const is_encoder *enc, is_names *stale)
{
    is_status st = INFERSCALE_OK;

    for (size_t i = 0; i < stale->n && st == INFERSCALE_OK; i++) st = is_vault_remove(enc->vault, stale->names[i]);
    if (st == INFERSCALE_OK && stale->n) st = is_bank_doomed_done(enc->bank, stale);
    is_names_free(stale);
    return st;
}

is_status is_encode_narrow(const is_encoder *enc, const is_partition *p, is_narrowing *n)
{
    const uint8_t *from = is_encode_wide_view(enc->profile), *to = enc->profile->fingerprint;
    is_recode rows[ROWS_AT_A_TIME];
    bool written[ROWS_AT_A_TIME] = { false };
    is_partition now = *p;
    is_lease *lease = NULL;
    is_narrowing before;
    is_names stale = { 0 };
    size_t n_rows = 0;
    is_status st;

    n->done = true;
    if (!from || !is_engine_geometry(enc->engine)) return INFERSCALE_OK;
    IS_TRY(is_bank_partition_refresh(enc->bank, &now));
    IS_TRY(is_bank_recodable(enc->bank, &now, from, to, n->after, ROWS_AT_A_TIME, rows, &n_rows));
    if (n_rows == 0) return INFERSCALE_OK;
    n->done = false;
    before = *n;
    st = is_keep_begin(enc, &now, &lease);
    if (st == INFERSCALE_OK) st = write_all(enc, &now, rows, n_rows, written, n);
    if (st == INFERSCALE_OK) st = is_bank_recode(enc->bank, &now, now.epoch, from, to, rows, n_rows, &stale);
    if (st != INFERSCALE_OK) st = withdraw(enc, st, rows, written, n_rows);
    is_lease_drop(lease);
    if (st != INFERSCALE_OK) {
        *n = before; /* nothing is counted that did not come about */
        return st;
    }
    n->after = rows[n_rows - 1].row_id;
    n->rows += n_rows;
    return remove_old(enc, &stale);
}
