/* study.h - a fidelity run under work (private to fidelity.c, study.c and study_plan.c). */
#ifndef IS_EVAL_STUDY_H
#define IS_EVAL_STUDY_H

#include "base/hash.h"
#include "eval/fidelity.h"
#include "eval/trace.h"

enum { NO_POLICY = -1, STUDY_ANSWER = 32 /* tokens of a gold answer, at most */ };

/* Whose system text a prompt begins with, or rows were encoded behind. */
typedef enum whose { OWN, CLIENT, SYSTEMS } whose;

enum { KINDS = FIDELITY_POLICIES + 1 }; /* policies without repetition, and header for F1 */

/* A fact that some question needs: its tokens, and its segment behind every header under every policy. */
typedef struct needed {
    lab_fact fact;
    is_segment *segments[SYSTEMS][KINDS];
} needed;

/* A policy that is encoded once, whatever the arms that use it. */
typedef struct kind {
    is_policy policy;
    uint64_t stored[SYSTEMS], computed[SYSTEMS];
} kind;

typedef struct asked {
    const locomo_qa *qa;
    uint32_t conversation;
    int64_t *ids;             /* [k] retrieved, best first */
    size_t *facts;            /* [k] indexes into needed */
} asked;

typedef struct study {
    lab *l;
    const fidelity_options *o;
    fidelity *f;
    is_engine *engine;
    trace *trace;
    const is_profile *profiles[SYSTEMS]; /* the lab's; the client's, NULL = no such arms */
    asked *questions;         /* of the conversation at hand */
    size_t n_questions;
    needed *facts;            /* likewise */
    size_t n_facts;
    int64_t *fact_ids;        /* observation -> id */
    const locomo_conversation *conversation;
    kind kinds[KINDS];
    size_t n_kinds;
    int of[FIDELITY_POLICIES], header; /* the kinds of an arm's policy, and of header; -1 = not wanted */
    uint8_t shuffle[IS_KEY_BYTES]; /* of the seed: random orders in what is encoded are the same on every store */
    uint8_t prompts[IS_HASH_BYTES]; /* of the question at hand: hash of the tokens of its text arms so far */
    size_t capacity;          /* of the arms' arrays */
    uint64_t done, total;     /* steps: facts encoded and questions run */
} study;

/* Counts a step; E_CANCELLED if the listener or the cancel flag says so. */
is_status study_progress(study *s, const char *what);
/* Which policies are to be encoded for the arms. */
is_status study_kinds(study *s);
/* Encodes the conversation's facts under all of them, and takes the segments of those that are needed. */
is_status study_encode(study *s);

/* One prompt of the study. Injected rows of a client's prompt are its own header's (matching) or ours (generic). */
typedef struct study_prompt {
    whose system, rows;
    int policy;               /* NO_POLICY = nothing is injected */
    uint32_t repair;
    bool memory;
    const uint32_t *order;    /* of the facts, best first; NULL = that of the arms of this system text */
} study_prompt;
is_status study_plan(study *s, const asked *q, const study_prompt *prompt, is_planned **out);
/* Arms are only comparable over the same tokens: E_INTERNAL. */
is_status study_same_tokens(const is_plan *a, const is_plan *b);

#endif
