/* history.h - a conversation as its caller sends it, whole each time: what was said, and what every stretch of it is known by. */
#ifndef IS_API_HISTORY_H
#define IS_API_HISTORY_H

#include "api/answer.h"

typedef uint8_t is_key[IS_HASH_BYTES];

/* Messages are borrowed. Turn i is the user's words 2i and the assistant's 2i + 1 of `said`. */
typedef struct is_history {
    char *system;            /* all system messages; NULL = none */
    const inferscale_message *said; /* [2 * n_turns + 1] */
    size_t n_turns;          /* earlier ones, answered */
    const char *question;    /* the newest user message */
    /* Each key is the hash, under the partition's secret, of whose memory it is (attributes and filters included), the system text
     * and all messages up to a place: the same prefix of any conversation has the same key. */
    is_key *asked;           /* [n_turns + 1] up to turn i's user words: names the placement before them */
    is_key *answered;        /* [n_turns + 1] up to the answer of turn i - 1 */
} is_history;

/* E_INVALID says which message is not as it must be. */
is_status is_history_read(const inferscale_message *messages, size_t n, is_history *out);
void is_history_free(is_history *h);
/* Fills in the keys; after is_asking_lease. */
is_status is_history_keys(is_history *h, const is_asking *a);
/* The name of the talk (talks.h) in which the conversation stands after `prefix`: apart by mode, and by how many turns were left out. */
is_status is_history_talk(const is_asking *a, const is_key prefix, size_t n_dropped, is_key out);
/* The prefix with this answer to the question. */
is_status is_history_told(const is_history *h, const is_asking *a, const char *answer, is_key out);

#endif
