/* schema.h - the bank's SQL schema, in one place. docs/formats.md describes it for people. */
#ifndef IS_BANK_SCHEMA_H
#define IS_BANK_SCHEMA_H

enum {
    BANK_APPLICATION_ID = 0x49534D42, /* "ISMB": written to the file's header, so that `file` and we know it */
    BANK_SCHEMA_VERSION = 10
};

/* bank_schema_steps[v] takes a database of version v to version v + 1. A new bank takes all steps, so each is run by every test.
 * A released step is never edited: a change of the schema is a new step. */
extern const char *const bank_schema_steps[BANK_SCHEMA_VERSION];

#endif
