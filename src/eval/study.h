/* study.h - a fidelity run under work (private to fidelity.c and study.c). */
#ifndef IS_EVAL_STUDY_H
#define IS_EVAL_STUDY_H

#include "eval/fidelity.h"
#include "eval/trace.h"

enum { NO_POLICY = -1 };

enum { KINDS = FIDELITY_POLICIES + 1 }; /* policies without repetition, and header for F1 */

/* A fact that some question needs: its tokens, and its segment under every policy. */
typedef struct needed {
    lab_fact fact;
    is_segment *segments[KINDS];
} needed;

/* A policy that is encoded once, whatever the arms that use it. */
typedef struct kind {
    is_policy policy;
    uint64_t stored, computed;
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
    asked *questions;         /* of the conversation at hand */
    size_t n_questions;
    needed *facts;            /* likewise */
    size_t n_facts;
    int64_t *fact_ids;        /* observation -> id */
    const locomo_conversation *conversation;
    kind kinds[KINDS];
    size_t n_kinds;
    int of[FIDELITY_POLICIES], header; /* the kinds of an arm's policy, and of header; -1 = not wanted */
    size_t capacity;          /* of the arms' arrays */
    uint64_t done, total;     /* steps: facts encoded and questions run */
} study;

/* Counts a step; E_CANCELLED if the listener or the cancel flag says so. */
is_status study_progress(study *s, const char *what);
/* Which policies are to be encoded for the arms. */
is_status study_kinds(study *s);
/* Encodes the conversation's facts under all of them, and takes the segments of those that are needed. */
is_status study_encode(study *s);

#endif
