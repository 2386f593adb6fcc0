/* narrow.c - rows that are stored in another codec than the one that is wanted now: rounded, renamed, put in
 * the place of the old ones; or removed, once there are others in their place.
 *
 * Computing rows again would cost hours of a large memory's time. Rounding f32 gives the bits that
 * encoding into the narrower codec gives, because that rounds the same f32 values
 * (tests/test_narrow.c). That is promised of one capture: a capture whose context was itself stored
 * rows saw these in f32 in the one case, and rounded in the other. Rows in the type of the engine's
 * cache are rounded twice on their way to int8 or int4, by half a unit of the finer type at most.
 *
 * Where the profile's codec is int8 or int4, rows of the cache's type come into its view as they
 * are, file and name, marked as wide; is_encode_settle rounds those whose page takes no more facts.
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

/* One walk over rows of one view. */
typedef struct walk {
    const is_encoder *enc;
    is_partition now;
    is_codec codec;              /* of the view that they come from */
    const uint8_t *from, *to;
    is_recode_range range;
} walk;

/* Does encoding in codec `to` round what is stored in `from`? */
static bool takes_over(is_codec from, is_codec to, is_codec cache)
{
    return from != to && (from == IS_CODEC_F32 || (from == cache && !is_codec_plain(to)));
}

static is_status narrow_name(const is_partition *p, const uint8_t *from, is_codec codec, uint8_t to[IS_HASH_BYTES])
{
    static const char what[] = "inferscale segment in a narrower codec 1";
    is_hash *h = NULL;

    IS_TRY(is_hash_new(p->key, &h));
    is_hash_field(h, what, sizeof what);
    is_hash_field(h, from, IS_HASH_BYTES);
    is_hash_u64(h, codec);
    is_hash_end(h, to);
    return INFERSCALE_OK;
}

/* What the old file holds, rounded, as a file of its own. A file that is gone, damaged or out of the codec's range makes the row go: the
 * fact is encoded again, or served as text. */
static is_status write_one(const walk *w, is_codec codec, is_recode *r, bool *written, is_narrowing *n)
{
    const is_encoder *enc = w->enc;
    is_segment *wide = NULL, *narrow = NULL;
    is_status st = narrow_name(&w->now, r->from, codec, r->to);

    if (st == INFERSCALE_OK) st = is_vault_get(enc->vault, r->from, is_engine_describe(enc->engine)->fingerprint, &wide);
    if (st == INFERSCALE_OK) st = is_segment_recode(wide, r->to, codec, &narrow);
    if (st == INFERSCALE_E_NOTFOUND || st == INFERSCALE_E_UNSUPPORTED) {
        is_log(IS_LOG_WARN, "rows in %s are not taken over, their fact is encoded again: %s", is_codec_name(w->codec), is_error());
        r->keep = false;
        st = INFERSCALE_OK;
    } else if (st == INFERSCALE_OK) {
        r->bytes = is_segment_bytes(narrow);
        n->bytes_before += is_segment_bytes(wide);
        n->bytes_after += r->bytes;
        n->files++;
        st = is_bank_doom(enc->bank, &w->now, r->to);
        *written = !is_vault_has(enc->vault, r->to);
        if (st == INFERSCALE_OK) st = is_vault_put(enc->vault, narrow);
    }
    is_segment_unref(wide);
    is_segment_unref(narrow);
    return st;
}

/* The row's new name, and its file where that is another. */
static is_status place_one(const walk *w, is_recode *r, bool *written, is_narrowing *n)
{
    const is_codec own = w->enc->profile->codec, cache = is_engine_describe(w->enc->engine)->exact_codec;
    const bool enters = w->from != w->to; /* the view */

    n->rows++;
    if (!r->keep) return INFERSCALE_OK;
    r->wide = enters && !is_codec_plain(own) && (w->codec == cache || r->open);
    if (!r->wide) return write_one(w, own, r, written, n);
    if (w->codec != cache) return write_one(w, cache, r, written, n);
    n->rows--; /* it only changes its view */
    n->entered++;
    memcpy(r->to, r->from, IS_HASH_BYTES);
    return INFERSCALE_OK;
}

/* Rows of equal names share a file. */
static const is_recode *same_before(const is_recode *rows, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (rows[k].keep && memcmp(rows[k].from, rows[i].from, IS_HASH_BYTES) == 0) return &rows[k];
    return NULL;
}

static is_status place_all(const walk *w, is_recode *rows, size_t n_rows, bool *written, is_narrowing *n)
{
    is_status st = INFERSCALE_OK;

    for (size_t i = 0; i < n_rows && st == INFERSCALE_OK; i++) {
        const is_recode *same = rows[i].keep ? same_before(rows, i) : NULL;

        if (i) st = is_keep_goes_on(w->enc, &w->now);
        if (st != INFERSCALE_OK) break;
        if (same) {
            memcpy(rows[i].to, same->to, IS_HASH_BYTES);
            rows[i].bytes = same->bytes;
            rows[i].wide = same->wide;
            n->rows++;
        } else {
            st = place_one(w, &rows[i], &written[i], n);
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

/* The next few rows of the walk; *n_rows = 0: none are left. */
static is_status walk_on(walk *w, is_narrowing *n, size_t *n_rows)
{
    is_recode rows[ROWS_AT_A_TIME];
    bool written[ROWS_AT_A_TIME] = { false };
    const is_narrowing before = *n;
    is_lease *lease = NULL, *names = NULL;
    is_names stale = { 0 };
    is_status st;

    IS_TRY(is_bank_recodable(w->enc->bank, &w->now, w->from, w->to, &w->range, rows, n_rows));
    if (*n_rows == 0) return INFERSCALE_OK;
    IS_TRY(is_lease_take_names(w->enc->bank, &w->now, true, &names));
    st = is_bank_recodable(w->enc->bank, &w->now, w->from, w->to, &w->range, rows, n_rows); /* as they are now */
    if (st != INFERSCALE_OK || *n_rows == 0) {
        is_lease_drop(names);
        return st;
    }
    st = is_keep_begin(w->enc, &w->now, &lease);
    if (st == INFERSCALE_OK) st = place_all(w, rows, *n_rows, written, n);
    if (st == INFERSCALE_OK)
        st = is_bank_recode(w->enc->bank, &w->now, w->now.epoch, w->from, w->to, rows, *n_rows, &stale);
    if (st != INFERSCALE_OK) st = withdraw(w->enc, st, rows, written, *n_rows);
    is_lease_drop(lease);
    if (st == INFERSCALE_OK) n->after = rows[*n_rows - 1].row_id;
    if (st == INFERSCALE_OK) st = remove_old(w->enc, &stale);
    is_lease_drop(names);
    if (st != INFERSCALE_OK) {
        *n = before; /* nothing is counted that did not come about */
    }
    return st;
}

static is_status walk_new(const is_encoder *enc, const is_partition *p, is_codec codec, const is_narrowing *n, walk *w)
{
    const is_profile *profile = enc->profile;
    const is_codec cache = is_engine_describe(enc->engine)->exact_codec;

    *w = (walk){ .enc = enc, .now = *p, .codec = codec, .to = profile->in_codec[profile->codec],
                 .range = { .after = n->after, .until = n->until, .most = ROWS_AT_A_TIME,
                            .take = takes_over(codec, profile->codec, cache) } };
    w->from = profile->in_codec[codec];
    return is_bank_partition_refresh(enc->bank, &w->now);
}

is_status is_encode_narrow(const is_encoder *enc, const is_partition *p, is_narrowing *n)
{
    const bool can = is_engine_geometry(enc->engine) != NULL;

    n->done = false;
    if (can && !n->until) IS_TRY(is_bank_last_segment(enc->bank, &n->until));
    for (; can && n->until && n->step < IS_CODECS; n->step++, n->after = 0) {
        const is_codec codec = (is_codec)n->step;
        uint64_t rest = 0, bytes = 0;
        size_t n_rows = 0;
        walk w;

        if (codec == enc->profile->codec) continue;
        IS_TRY(walk_new(enc, p, codec, n, &w));
        IS_TRY(walk_on(&w, n, &n_rows));
        if (n_rows) return INFERSCALE_OK;
        IS_TRY(is_bank_count_view(enc->bank, &w.now, w.from, &rest, &bytes));
        n->left = n->left || rest > 0;
    }
    n->done = true;
    return INFERSCALE_OK;
}

is_status is_encode_settle(const is_encoder *enc, const is_partition *p, is_narrowing *n)
{
    size_t n_rows = 0;
    walk w;

    n->until = INT64_MAX;
    if (is_engine_geometry(enc->engine) && !is_codec_plain(enc->profile->codec)) {
        IS_TRY(walk_new(enc, p, enc->profile->codec, n, &w));
        IS_TRY(walk_on(&w, n, &n_rows));
    }
    n->done = n_rows == 0;
    return INFERSCALE_OK;
}

is_status is_encode_count_wide(is_bank *bank, const is_engine_info *model, const is_profile *profile,
                               const is_partition *p, uint64_t *n, uint64_t *bytes)
{
    *n = *bytes = 0;
    if (!is_codec_plain(profile->codec)) IS_TRY(is_bank_count_wide(bank, p, profile->fingerprint, n, bytes));
    for (int codec = 0; codec < IS_CODECS; codec++) {
        uint64_t rows = 0, size = 0;

        if (!takes_over((is_codec)codec, profile->codec, model->exact_codec)) continue;
        IS_TRY(is_bank_count_view(bank, p, profile->in_codec[codec], &rows, &size));
        *n += rows;
        *bytes += size;
    }
    return INFERSCALE_OK;
}
