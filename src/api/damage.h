/* damage.h - segments that are missing or damaged leave the books, so that they are encoded again; but never over and over.
 *
 * Who finds it: planning, when the vault has no usable file; or a server elsewhere, which is hearsay. What a server says it cannot use is
 * looked at here, with all checksums. If the file is bad here too it is damaged, whoever found it. If it is well here the server is at fault
 * (it sees no folder, or an old state of it): counted as disputed, logged, and nothing is encoded again, since that would mend nothing
 * there and be asked for with every question.
 *
 * What fails again soon after it was encoded anew rests: 10 seconds, doubling up to an hour. Meanwhile its fact is text. The same holds for
 * looking again at what is disputed. Two hours without a failure, and all is forgiven. */
#ifndef IS_API_DAMAGE_H
#define IS_API_DAMAGE_H

#include "api/handle.h"

typedef struct is_damage_counts {
    uint64_t queued;   /* left the books, to be encoded again */
    uint64_t rested;   /* failed again too soon for that */
    uint64_t disputed; /* servers' complaints of files that are well here, or were when they were last looked at */
} is_damage_counts;

is_status is_damage_new(struct is_damage **out);
void is_damage_free(struct is_damage *d); /* NULL is allowed */
void is_damage_count(inferscale *is, is_damage_counts *out);

/* What one answer could not use. */
typedef struct is_unusable {
    size_t queued; /* missing or damaged, and to be encoded again */
    size_t kept;   /* missing or damaged, but left as they are for now: they rest, or the store is open for reading only */
    size_t unread; /* their files cannot be read just now: nothing is known against them, and they stay */
} is_unusable;

/* The vault has no usable file of this row (E_NOTFOUND, and nothing else: is_vault_get). */
void is_damage_found(inferscale *is, const is_partition *p, const is_segment_row *row, is_unusable *n);
/* A server says that it could not use the rows of this part, which is stored. Counts in n what is damaged here too. */
void is_damage_told(inferscale *is, const is_partition *p, const is_part *part, const char *reason, is_unusable *n);

#endif
