/* answer.h - the steps that asking, conversing and completing share: find, plan, run (answer.c), generate (generate.c). */
#ifndef IS_API_ANSWER_H
#define IS_API_ANSWER_H

#include "api/handle.h"
#include "api/hold.h"
#include "api/variant.h"
#include "base/buf.h"
#include "plan/plan.h"

/* Of which rows a fact of a prompt was made. */
typedef struct is_used_rows {
    int64_t id;
    int version;
    bool stored;
    uint8_t segment[IS_HASH_BYTES];    /* stored: its name */
} is_used_rows;

typedef struct is_made_of { is_used_rows *of; size_t n; } is_made_of; /* all facts of a prompt, in its order */

/* One question under way. */
typedef struct is_asking {
    inferscale *is;
    const inferscale_scope *scope;
    const char *question;
    inferscale_ask_options o;          /* defaults filled in */
    is_partition p;
    bool has_partition;
    is_hold hold;                      /* what it uses, for those who change or forget it meanwhile */
    double t0_ms;
    inferscale_answer *answer;         /* filled in step by step */
    is_sought sought; /* the question's vector, for every plan that is made of it */
    is_buf why;                        /* fallback reasons, "; " between them */
    const is_dep *skip;                /* conversations: those already placed, not placed again */
    size_t n_skip;
    is_plan_opts shape;                /* conversations: what stands before the newest turn; room and memory are filled in */
    inferscale_complete_options c;     /* what only inferscale_complete asks for; its ask is o */
    is_bias *bias;                     /* [c.n_bias] the same as the engine has them */
    is_realm realm;                    /* whose memory the engine works on */
    bool has_realm;                    /* somebody's */
    bool inside;                       /* the handle's gate: background work stands still until is_asking_free */
    is_variant *variants;              /* [n_variants] whose rows each fact has */
    size_t n_variants;
    bool accepted;                     /* c.on_accepted was called */
    const is_plan *ran;                /* what the engine was given; the planned's, which stays until is_asking_generate returned */
    is_made_of resident;               /* conversations: facts that the run held before; borrowed */
    is_made_of used;                   /* by the answer; set when it is over */
    is_buf told;                       /* ids of the answer's tokens */
    bool exactly;                      /* the answer's text is those tokens' bytes, nothing cut or replaced */
} is_asking;

/* Checks arguments, allocates the answer. scope NULL: no memory. is_asking_free frees it unless it was taken (answer set to NULL). */
is_status is_asking_begin(is_asking *a, inferscale *is, const inferscale_scope *scope, const char *question,
                          const inferscale_ask_options *options);
void is_asking_free(is_asking *a);
/* A reason, INFERSCALE_FALLBACK_*, and its sentence. */
void is_asking_note(is_asking *a, unsigned fallback, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Notes the facts of the plan that are computed though they were to be injected, and those that did not fit. */
void is_asking_shortfalls(is_asking *a, const is_planned *planned);
void is_asking_note_damaged(is_asking *a, const is_unusable *n); /* nothing, if n is */

/* A sentence for clients: without the names of files and servers. */
void is_add_without_places(is_buf *b, const char *text);

/* Before each try: what an outdated plan noted and held does not count. */
void is_asking_again(is_asking *a);

/* E_STALE, with its sentence: something that is used went before the first token was out. */
is_status is_asking_gone(void);

/* Room for the prompt in tokens. */
uint32_t is_asking_room(is_asking *a);

/* The facts' tokens and, where rows are wanted and there, segments: facts[n] is zeroed; what it holds is the caller's, also on failure. */
is_status is_asking_facts(is_asking *a, const inferscale_list *items, size_t n, is_plan_fact *facts);

/* Embeds the question, if a search is to use that; once, however often it is planned anew. Planning
 * does it otherwise: to be called before the question holds anything that others need. */
is_status is_asking_embed(is_asking *a);

/* Finds the facts and plans, with a->shape. */
is_status is_asking_plan(is_asking *a, is_planned **out);

/* A lease on the owner's memory as it is now; nothing if there is none yet. Planning takes it, too. */
is_status is_asking_lease(is_asking *a);

/* Enters what the plan uses. *fresh = the partition did not change since the plan was made; if not, plan again. */
is_status is_asking_fresh(is_asking *a, const is_planned *planned, bool *fresh);

/* Whose memory and words the engine is to work on; NULL = nobody's. Lives as long as `a`. */
is_status is_asking_realm(is_asking *a, const is_realm **out);

/* Starts *run (NULL) or extends it with the plan; idle conversations (talks.h) make room where the engine has none. Falls back to the
 * text twin when the engine refuses the stored rows. E_STALE: what it uses went meanwhile, plan again. */
is_status is_asking_run(is_asking *a, is_planned *planned, is_run **run);

/* Whose rows a fact of the plan has; NULL = none were looked for. */
is_variant *is_asking_variant(is_asking *a, int64_t fact_id);
void is_asking_counts(is_asking *a, const is_run_stats *stats);

/* settle.c: the answer is over. What the engine says only now of rows that it did not use (engine.h: why) corrects what the answer claims;
 * segments that are damaged leave the books (damage.h). */
void is_asking_settle(is_asking *a, is_run *run);

/* made_of.c: after that, a->used and the answer's rows_digest. */
is_status is_asking_made_of(is_asking *a);
void is_made_of_free(is_made_of *rows);

/* Samples the answer from the run's logits. E_STALE: what it uses went before the first token, plan again. If it went later the answer
 * ends there: finish "cancelled", the fallback says why, and hold.stop is set. The run is to be ended in both cases.
 * *pending: the last token, sampled but not run (-1 if it was run or ended the answer). */
is_status is_asking_generate(is_asking *a, is_run *run, int32_t *pending);

/* The next token is run; idle conversations make room for it. */
is_status is_asking_feed(is_asking *a, is_run *run, int32_t token);

/* Hands the finished answer out. */
is_status is_asking_finish(is_asking *a, inferscale_answer **out);

#endif
