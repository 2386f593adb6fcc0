/* calibrate.h - how this handle's embedder is to be read (embed/calibrate.h): known of itself, or
 * kept in the bank, or measured.
 *
 * Measuring embeds 64 short texts, once for an embedder and a store. The background encoder does
 * it after its first facts are embedded, and so do calls that embed. A handle without a
 * background encoder (a command, a store that is only read) does it at its first question,
 * before the search: one that does not answer holds that up for 4 s at most. Until it is done
 * the scores of questions go by words alone. No lock is held over it. */
#ifndef IS_API_CALIBRATE_H
#define IS_API_CALIBRATE_H

#include "api/handle.h"
#include "embed/calibrate.h"

/* Who measures, and how its texts are embedded. */
enum {
    IS_CALIBRATE_IN_QUESTION,
    IS_CALIBRATE_IN_BACKGROUND,
    IS_CALIBRATE_AGAIN /* in the background, though it is known */
};

/* After the embedder is loaded. *known false: it is to be measured. Reads the bank until it is known. E_IO and the like. */
is_status is_handle_calibration(inferscale *is, is_bank *bank, is_calibration *out, bool *known);
/* Measures unless it is known or another thread is at it, and keeps it in the bank unless that
 * is only read. A failure is no failure of the caller's work: it is in the log, and it is tried
 * again after a minute. cancel may be NULL. */
void is_handle_calibrate(inferscale *is, is_bank *bank, int how, const volatile int *cancel);

#endif
