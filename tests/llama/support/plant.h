/* plant.h - real faults on the way of rows from the encoder to the engine, planted by the linker.
 *
 * The functions that plant.c wraps (its WRAP lines, read by the Makefile) are the product's own
 * seams: what the encoder asks of the engine, how it takes positions off keys, what it stores, and
 * what a prompt gives the engine. Exactly one fault is planted at a time. A program that uses this
 * is linked with -Wl,--wrap for each of them.
 *
 * What the engine captures is kept, and given again for the same tokens: encoding the same facts
 * once more costs only what the planted fault changes. */
#ifndef TESTS_LLAMA_PLANT_H
#define TESTS_LLAMA_PLANT_H

#include "engine/engine.h"
#include "plan/profile.h"

typedef enum plant {
    PLANT_NONE,
    PLANT_POSITION,      /* the encoder takes keys' positions off as if they stood one earlier */
    PLANT_NO_HEADER,     /* facts are encoded without the header before them */
    PLANT_PLAN_NO_HEADER, /* an injected prompt does not begin with its header */
    PLANT_SCALES,        /* int8: the scales of heads 0 and 1 are exchanged, in all rows */
    PLANT_K_AND_V,       /* keys are stored as values and values as keys */
    PLANT_OTHER_OWNER,   /* one fact in PLANT_ONE_IN has the rows of another owner's fact */
    PLANT_STALE,         /* rows of what the facts said before (plant_exchange) */
    PLANT_LAYER,         /* one layer of rows is not written: it is zero */
    PLANTS
} plant;
enum { PLANT_ONE_IN = 4 };

const char *plant_name(plant p);
/* Plants this fault in place of the one before. */
void plant_set(plant p);
/* How often the fault took effect since it was planted: 0 means that nothing came by its seam. */
unsigned plant_hits(void);

/* Tokens of the header that PLANT_NO_HEADER leaves out. */
void plant_header(uint32_t n_tokens);
/* A fact and what it said before, with as many tokens (false: they are not as many, or the same).
 * Copied. */
bool plant_exchange(const is_tokens *now, const is_tokens *before);
/* While on, rows that are stored are also kept as another owner's. */
void plant_record(bool on);

size_t plant_bytes(void);    /* what is kept of captures */
void plant_free(void);

#endif
