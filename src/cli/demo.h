/* demo.h - the parts of `inferscale demo`: its data, and what it prints. */
#ifndef IS_CLI_DEMO_H
#define IS_CLI_DEMO_H

#include "cli/cli.h"

/* A file of the demo's data: $PREFIX/share/inferscale/NAME or data/NAME of the source tree, found from where the program is.
 * is_free'd; NULL + error. */
char *demo_data_path(const char *name);

enum { DEMO_QUESTIONS_MAX = 16, DEMO_K_MAX = 8 };

/* One question's answers. kv: from the first stage's rows; text: the same prompt computed. second:
 * from the second stage's rows, whose prompt may have the facts in another order; second_text: that
 * prompt computed. Both NULL = that stage was not encoded. */
typedef struct demo_pair { inferscale_answer *kv, *text, *second, *second_text; } demo_pair;
typedef struct demo_k { int64_t k; uint32_t facts, fact_tokens; double kv_ms, text_ms; } demo_k;

/* Whom text is asked from. scope, question and k: of the trial, borrowed. */
typedef struct demo_text {
    const inferscale_scope *scope;
    const char *question;
    int64_t k;
    inferscale *is, *own; /* own: the second handle, NULL = there is none; is: own or the first */
    bool kv_fa, fa;       /* flash attention of the first handle and of text's */
    bool tried;           /* text was tried with both, and fa is the faster */
} demo_text;
/* Tries text on the first handle and on one with the other flash attention, on the same store in
 * folder home; text is then asked from the faster. Only the first where the setting was given, or
 * the engine computes elsewhere. demo_text_close, also after a failure. */
inferscale_status demo_text_open(inferscale *is, const inferscale_options *store, const char *home,
                                 demo_text *t);
void demo_text_close(demo_text *t);

/* Both executions of one question, side by side; each says whose rows it was answered from, and the
 * injected ones whether they say the same as text. */
void demo_print_pair(inferscale *is, const inferscale_scope *scope, size_t number, const char *question, const demo_pair *p);
/* What is paid at each k, with bars. */
void demo_print_k(const demo_k *rows, size_t n, int64_t runs);
/* What to type next, with the program as it is called from here. */
void demo_print_next(void);
/* {answer, rows, ttft_ms, tokens_computed, tokens_injected, mode, fallback, facts}; rows: see
 * demo_rows. NULL: null. */
json_t *demo_answer_json(const inferscale_answer *answer);
/* Which rows it was answered from: "first stage", "second stage", "both stages" or "none". */
const char *demo_rows(const inferscale_answer *answer);

#endif
