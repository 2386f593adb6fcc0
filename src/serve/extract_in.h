/* extract_in.h - what the files of the extractor share. */
#ifndef IS_SERVE_EXTRACT_IN_H
#define IS_SERVE_EXTRACT_IN_H

#include "base/buf.h"
#include "serve/extract.h"

enum { EXTRACT_FACTS = 12, EXTRACT_LINES = 16, EXTRACT_CHARS = 6000 };

/* One line of a dialogue: a message. */
typedef struct extract_line {
    const char *who;               /* shown: a name, "user" or "assistant" */
    const char *text;
    bool is_user;
    int64_t when, turn;            /* turn: its id in the store; 0 = none */
    bool dated;                    /* when was given; else it is now */
} extract_line;

/* A fact that passed. */
typedef struct extract_fact {
    char text[512];
    size_t line;                   /* of the lines given */
} extract_fact;

/* Why one did not. */
typedef enum extract_fault {
    FAULT_UNREADABLE, FAULT_SHORT, FAULT_LONG, FAULT_NO_WORDS, FAULT_NOT_ALONE, FAULT_NOT_SAID, FAULT_NUMBER, FAULT_PROMPT, FAULT_TWICE,
    FAULT_FORGOTTEN, FAULT_TOO_MANY, N_FAULTS
} extract_fault;
extern const char *const extract_faults[N_FAULTS];

typedef struct extract_found {
    extract_fact facts[EXTRACT_FACTS];
    size_t n;
    unsigned refused[N_FAULTS];
} extract_found;

/* Asks the model for facts of the lines (n <= EXTRACT_LINES) and checks them. A reply that is no JSON of the form counts as one fault. */
is_status extract_facts(const is_extractor *x, const extract_line *lines, size_t n, extract_found *out);
/* The reply's facts, checked (extract_check.c). */
void extract_read(const char *reply, const extract_line *lines, size_t n, extract_found *out);
/* Do they share a word that carries meaning? */
bool extract_related(const char *a, const char *b);

typedef enum extract_choice { CHOICE_ADD, CHOICE_UPDATE, CHOICE_DELETE, CHOICE_NOOP, CHOICE_UNREADABLE } extract_choice;
/* What to do with a fact beside n old ones (n <= 5); *which: the old one meant. */
is_status extract_choose(const is_extractor *x, const char *fact, const char *const *old, size_t n, extract_choice *choice, size_t *which);
extract_choice extract_read_choice(const char *reply, size_t n, size_t *which);

/* What the model is told (extract_ask.c); a fact may be no piece of it. */
extern const char extract_told[];
/* One answer of the model (extract_ask.c). grammar: for the served model. *out: is_free. */
is_status extract_ask(const is_extractor *x, const char *system, const char *user, const char *grammar, uint32_t max_tokens, char **out);

#endif
