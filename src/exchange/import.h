/* import.h - JSON Lines (docs/formats.md) into a store. */
#ifndef IS_EXCHANGE_IMPORT_H
#define IS_EXCHANGE_IMPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "inferscale.h"

typedef struct is_import_options {
    inferscale_scope scope;        /* goes before a line's own user, agent, run, app; its tenant is the tenant */
    const char *nobody;            /* user of lines that name no owner where scope names none; NULL = they are refused */
    bool bound;                    /* scope names the owner: a line may add attributes, never make it another owner's (E_DENIED) */
    inferscale_progress_fn on_progress; /* done = lines; may be NULL */
    void *progress_ctx;
} is_import_options;

/* How an import went. Everything in lines before failed_line is stored; failed_line 0 = all is. */
typedef struct is_import {
    size_t facts, known;           /* added facts, facts that were there already */
    size_t dated, kept;            /* known ones that took the date, that kept what they have */
    size_t turns, known_turns;     /* the same of turns (known.h) */
    size_t failed_line;
    inferscale_status status;      /* of the failure; its sentence is in error */
    char error[1100];
    json_t *events;                /* [{id, event, ...}] (is_event_json) in file order */
    inferscale_scope *scopes;      /* distinct scopes written to; strings owned */
    size_t n_scopes;
} is_import;

/* Stores the records of f. Facts' source_turn is mapped from the file's ids to the new ones. Lines are stored in transactions of up to
 * 256. */
void is_import_run(inferscale *is, const is_import_options *options, FILE *f, is_import *out);
/* Counts one remembered fact, and adds it to the events. */
void is_import_count(is_import *out, const inferscale_event *e);
void is_import_free(is_import *out);

#endif
