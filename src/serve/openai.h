/* openai.h - the OpenAI face, as its files share it. A request is parsed as a whole before anything runs (no engine, no server:
 * the parser is fuzzed), then run, then replied:
 *
 *   openai.c            routes, models
 *   openai_fields.c     the table of fields, of both kinds of completion: what is read, accepted, refused
 *   openai_messages.c   messages to a conversation that the library takes
 *   openai_memory.c     the `memory` object of a request and of an answer
 *   openai_tools.c      response_format and tools to a grammar, and a grammar's text to a call
 *   openai_run.c        n answers, whole or as they come
 *   openai_reply.c      the JSON of answers and chunks
 *   openai_embed.c      embeddings */
#ifndef IS_SERVE_OPENAI_H
#define IS_SERVE_OPENAI_H

#include <pthread.h>

#include "base/buf.h"
#include "base/status.h"
#include "serve/server.h"

enum { IS_OA_CHAT = 1, IS_OA_TEXT = 2, IS_OA_N_MAX = 8, IS_OA_PROMPTS = 16, IS_OA_TOOLS = 128, IS_OA_MESSAGES = 4096 };

/* Why a request is refused: all 400 but for what `status` says. */
typedef struct is_oa_fault {
    int status;
    const char *type, *code;   /* static; code may be NULL */
    char param[200], message[700];
} is_oa_fault;

/* Fills the fault in; false, so that a reader can `return is_oa_refuse(...)`. param NULL = none. */
bool is_oa_refuse(is_oa_fault *f, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
bool is_oa_no_memory(is_oa_fault *f);
void is_oa_reply_fault(is_request *r, const is_oa_fault *f);

/* What the parser must know of the server. */
typedef struct is_oa_known {
    uint32_t k, n_vocab;       /* n_vocab 0 = not known: token numbers are not checked */
    int mode;                  /* INFERSCALE_MODE_* when a request does not say */
} is_oa_known;

typedef enum is_oa_call { IS_OA_CALL_NONE, IS_OA_CALL_ANY, IS_OA_CALL_NAMED } is_oa_call;

/* A request, parsed. Strings are borrowed from its JSON or owned by `kept`. */
typedef struct is_oa_ask {
    int form;                  /* IS_OA_CHAT or IS_OA_TEXT */
    const is_oa_known *known;
    json_t *body;              /* borrowed */
    const char *model;         /* NULL = not said */
    inferscale_complete_options o;
    inferscale_recall_options recall;
    inferscale_message *messages;
    size_t n_messages;
    const char **prompts;      /* completions */
    size_t n_prompts;
    uint32_t n, best_of;
    uint32_t max_tokens, max_completion_tokens; /* 0 = not given */
    bool stream, include_usage, echo, has_seed, has_stream_options, has_top_logprobs;
    bool return_text;          /* memory.facts carry their text */
    bool memory_named;         /* the memory object asks for what only an owner's memory can give */
    is_oa_call call;           /* the answer must be a call of one of tool_names */
    const char **tool_names;
    size_t n_tools;
    json_t *tool_choice, *tools, *response_format; /* as sent, borrowed; read when all fields are known */
    char *tools_text;          /* what the model is told of the functions; owned by kept */
    void **kept;
    size_t n_kept;
} is_oa_ask;

/* body: a JSON object, borrowed, must live as long as *out. False: the fault says why. is_oa_ask_free in both cases. */
bool is_oa_parse(int form, json_t *body, const is_oa_known *known, is_oa_ask *out, is_oa_fault *f);
void is_oa_ask_free(is_oa_ask *a);
/* n zeroed bytes that live as long as the ask; NULL = out of memory. */
void *is_oa_keep(is_oa_ask *a, size_t n);
/* b's bytes as a string that lives as long as the ask; frees b. */
char *is_oa_keep_buf(is_oa_ask *a, is_buf *b);

/* openai_messages.c */
bool is_oa_read_messages(is_oa_ask *a, json_t *v, const char *name, is_oa_fault *f);
bool is_oa_finish_messages(is_oa_ask *a, is_oa_fault *f);    /* adds what is said of tools to the system text */

/* openai_memory.c */
bool is_oa_read_memory(is_oa_ask *a, json_t *v, const char *name, is_oa_fault *f);
bool is_oa_names_memory(const char *name); /* a member of `memory` */

/* openai_tools.c */
bool is_oa_finish_grammar(is_oa_ask *a, is_oa_fault *f);     /* response_format, tools, tool_choice: sets o.grammar */
/* A call's text, or its beginning: *name, and where its arguments begin. False: that far it has not come. */
bool is_oa_split_call(const is_oa_ask *a, const char *text, size_t len, const char **name, size_t *arguments);
void is_oa_call_id(char out[32]);

/* ---- Running ------------------------------------------------------------------------------------------------------------- */

typedef struct is_oa_run is_oa_run;

/* One answer of a request. */
typedef struct is_oa_choice {
    is_oa_run *run;
    size_t index, prompt;
    inferscale_complete_options o;
    inferscale_recall_options nothing; /* a search that finds nothing */
    inferscale_answer *answer;
    is_status st;
    char sentence[1024];       /* of st */
    char call_id[32];
    bool opened, named;        /* streaming: its first chunk, its call's name is out */
    is_buf text;               /* streaming a call: what came so far */
    size_t sent;               /* of it */
    json_t *tokens;            /* streaming with logprobs: those whose text comes next */
    size_t text_offset;        /* completions: characters before those tokens */
    pthread_t thread;
    bool started;              /* its thread; of the first: the others were started */
} is_oa_choice;

struct is_oa_run {
    is_server *s;
    is_request *r;
    is_oa_ask *ask;
    const inferscale_scope *scope; /* NULL = without memory */
    char id[48], fingerprint[16], model[128];
    json_int_t created;
    uint32_t n_ctx;
    is_oa_choice *choices;     /* [n_choices]: n of each prompt */
    size_t n_choices;
    int64_t *ids;              /* the first choice's facts, for the others */
    size_t n_ids;
    bool searched;             /* ids are known, if only to be none */
    pthread_mutex_t lock;      /* of the stream */
    bool begun, broken;
};

/* Runs the request and replies. */
void is_oa_answer(is_server *s, is_request *r, is_oa_ask *a, const inferscale_scope *scope);

json_t *is_oa_memory_of(const is_oa_run *run, const inferscale_answer *ans, bool whole); /* openai_memory.c; whole: the answer is over */

/* openai_reply.c. All return new objects, or NULL when memory is out. What is handed over as delta or choices is taken. */
json_t *is_oa_chunk(const is_oa_run *run, json_t *choices);
/* A chunk of one choice, with the tokens that wait in c->tokens: a chat's delta, or a completion's text. finish NULL = it goes
 * on. */
json_t *is_oa_delta(is_oa_choice *c, json_t *delta, const char *finish);
json_t *is_oa_piece(is_oa_choice *c, const char *text, size_t len, const char *finish); /* text, in the request's form */
/* The same for the log: who hung up (called_off) reads no finish_reason, and there stands what it was. */
const char *is_oa_ended(const is_oa_choice *c, bool called_off);
json_t *is_oa_usage(const is_oa_run *run);
json_t *is_oa_whole(is_oa_run *run);                       /* the answer as one object */
json_t *is_oa_token(const inferscale_token *t);            /* in chat's form */
/* A list of those, borrowed, in the request's form; *offset: characters before them, counted on. */
json_t *is_oa_logprobs(const is_oa_choice *c, json_t *tokens, size_t *offset);
const char *is_oa_finish(const is_oa_choice *c);
json_t *is_oa_error_of(const is_server *s, is_status st, const char *message);

/* openai.c */
bool is_oa_knows_model(is_server *s, const char *name);
void is_oa_not_a_model(is_request *r, const char *name, const char *served, const char *more); /* more: behind the message, "" = nothing */
/* The embedder's name, as requests give it. */
void is_oa_embedder_name(is_server *s, char *out, size_t size);

void is_oa_handle_embeddings(is_server *s, is_request *r);

#endif
