/* words.h - what a sentence calls the next step, for whoever reads it.
 *
 * A sentence of the library may say which call lists the ids. A C program calls inferscale_ls, a person at the command line types
 * `inferscale ls`, a client of the server sends GET /memories, a model that speaks MCP has the tool list_memories. Sentences take
 * the words from this table, and never hold the name of a C function themselves (scripts/check-source.py looks for those).
 *
 * Who reads is set once a process: the command line and the server say so when they start; a thread
 * may differ (MCP in the server). A plug-in has its own copy of this room and asks its host. */
#ifndef IS_BASE_WORDS_H
#define IS_BASE_WORDS_H

/*    name, for a C program, at the command line, for a client of the server, for a model by MCP */
#define IS_CALLS(X) \
    X(LIST, "inferscale_ls", "`inferscale ls`", "GET /memories", "list_memories") \
    X(UPDATE, "inferscale_update", "`inferscale update`", "PUT /memories/{id}", "update_memory") \
    X(ENCODE_WAIT, "call inferscale_encode_wait", "run `inferscale encode --wait`", "wait until GET /inferscale/encode says that fewer do", \
      "wait a minute") \
    X(ENCODE_STATUS, "inferscale_encode_status", "`inferscale encode --status`", "GET /inferscale/encode", "the log") \
    X(BACKGROUND, "set inferscale_options.background, or call inferscale_encode", "leave out --read-only", \
      "send POST /inferscale/encode", "encode by hand") \
    X(BACKUP, "inferscale_backup", "`inferscale backup`", "`inferscale backup`", "`inferscale backup`") \
    X(FSCK, "inferscale_fsck", "`inferscale fsck`", "`inferscale fsck`", "`inferscale fsck`") \
    X(REPAIR, "inferscale_fsck with repair", "`inferscale fsck --repair`", "`inferscale fsck --repair`", \
      "`inferscale fsck --repair`") \
    X(ENCODE, "inferscale_encode", "`inferscale encode`", "POST /inferscale/encode", \
      "`inferscale encode`") \
    X(HOME, "inferscale_options.home", "--home", "--home", "--home") \
    X(WRITE, "open it without inferscale_options.read_only", "leave out --read-only", \
      "start it without --read-only", "start it without --read-only") \
    X(CODEC, "inferscale_options.codec", "--codec", "--codec", "--codec") \
    X(CTX, "inferscale_options.n_ctx", "--ctx", "--ctx", "--ctx") \
    X(RAM, "inferscale_options.ram_bytes", "--ram", "--ram", "--ram") \
    X(UPSTREAM, "inferscale_options.upstream", "--upstream", "--upstream", "--upstream")

typedef enum is_call {
#define IS_CALL_X(name, c, cli, http, mcp) IS_CALL_##name,
    IS_CALLS(IS_CALL_X)
#undef IS_CALL_X
    IS_CALL_COUNT
} is_call;

typedef enum is_reader { IS_READER_C, IS_READER_CLI, IS_READER_HTTP, IS_READER_MCP, IS_READER_COUNT } is_reader;

/* Of the process, from now on; returns what it was. At the start a C program reads. */
is_reader is_reader_set(is_reader r);
/* Of this thread, until it is called again; returns what it was. -1 = as the process. */
int is_reader_here(int r);

/* Static. */
const char *is_words(is_call what);
const char *is_words_for(is_call what, is_reader r);

/* Of this thread, else of the process. */
is_reader is_reader_now(void);
/* A plug-in's copy asks its host from now on; called once, when the plug-in is loaded. */
void is_reader_ask(is_reader (*now)(void));

#endif
