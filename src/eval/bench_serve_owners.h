/* bench_serve_owners.h - who asks in a benchmark of the server, and what each remembers (private to bench_serve*.c). */
#ifndef IS_EVAL_BENCH_SERVE_OWNERS_H
#define IS_EVAL_BENCH_SERVE_OWNERS_H

#include "eval/bench_serve.h"

enum { OWNER_NAME = 48, MARKER = 24 };

typedef struct owner_fact {
    int64_t id;
    int64_t time; /* its date */
    uint32_t owner;
    char *text;
} owner_fact;

typedef struct owners {
    uint32_t n;
    owner_fact *facts;        /* by id */
    size_t n_facts, cap;
} owners;

void owner_name(const bench_serve_options *o, uint32_t owner, char out[OWNER_NAME]);
/* A word that stands in one fact of this owner and nowhere else. */
void owner_marker(const bench_serve_options *o, uint32_t owner, char out[MARKER]);
extern const char owner_marker_question[];

/* Gives n owners their facts by POST /memories, and waits until they are encoded. */
is_status owners_make(const bench_serve_options *o, uint32_t n, owners *out, double *remember_s, double *encode_s);
void owners_free(owners *w);
/* The fact with this id; NULL = nobody's. */
const owner_fact *owners_find(const owners *w, int64_t id);

/* bench_serve_plain.c: the messages of the plain prompt (plain.h) about one owner's question: the k
 * best facts are searched for by POST /search of o->url. *foreign is set if one of them is somebody
 * else's. *out: json_decref. E_IO, E_UNSUPPORTED, E_NOMEM. */
is_status plain_messages(const bench_serve_options *o, const owners *w, uint32_t owner,
                         const char *question, json_t **out, bool *foreign);

/* What an answer's `memory` says. */
typedef struct answer_memory {
    bool there, foreign;      /* foreign: a fact of somebody else */
    bool unlike;              /* another mode than asked, or a fallback but the next one */
    bool not_kept;            /* placement_not_kept alone: what a server that only reads says */
    uint32_t n_facts, computed, injected, resident;
    const owner_fact *last;   /* the prompt's last fact */
} answer_memory;
answer_memory owners_check(const owners *w, const load_sample *s);
/* The mock engine says "I recall: " and the prompt's last fact: whether s does, as far as it goes. */
bool owners_echoes(const load_sample *s, const owner_fact *last);

#endif
