/* calls_cases.h - rows of calls.c that stand in calls_write.c, calls_ask.c and calls_keep.c, and what they share. */
#ifndef TESTS_CALLS_CASES_H
#define TESTS_CALLS_CASES_H

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "support/calls.h"

#define MUST(expr)                                                                                                             \
    do {                                                                                                                       \
        if ((expr) != INFERSCALE_OK) fail_msg("%s: %s", #expr, inferscale_error());                                            \
    } while (0)

extern const char *const calls_base_texts[CALLS_FACTS];
/* How many of the scope's items are this text. */
size_t calls_count_in(calls *c, const inferscale_scope *s, const char *text);
/* One answer from the scope, checked if there is one. */
inferscale_status calls_ask(calls *c, const inferscale_scope *s);
int calls_remove_one(const char *path, const struct stat *s, int type, struct FTW *ftw); /* for nftw */

/* ---- calls_write.c ------------------------------------------------------------------------------------------------------- */

inferscale_status calls_remember_two(calls *c);
void calls_two_or_none(calls *c, inferscale_status st);
void calls_have_two(calls *c);
void calls_have_two_encoded(calls *c);
inferscale_status calls_run_turns(calls *c);
inferscale_status calls_run_update(calls *c);
void calls_changed_or_not(calls *c, inferscale_status st);
inferscale_status calls_run_forget(calls *c);
void calls_first_gone_or_not(calls *c, inferscale_status st);
inferscale_status calls_run_forget_all(calls *c);
void calls_both_gone_or_not(calls *c, inferscale_status st);
inferscale_status calls_run_supersede(calls *c);
void calls_superseded_or_not(calls *c, inferscale_status st);
inferscale_status calls_run_pin(calls *c);
void calls_pinned_or_not(calls *c, inferscale_status st);
inferscale_status calls_run_forget_with(calls *c);

/* ---- calls_ask.c --------------------------------------------------------------------------------------------------------- */

inferscale_status calls_run_recall(calls *c);
inferscale_status calls_run_ls(calls *c);
inferscale_status calls_run_show(calls *c);
inferscale_status calls_run_whose(calls *c);
inferscale_status calls_run_encode(calls *c);
void calls_encoded_or_not(calls *c, inferscale_status st);
inferscale_status calls_run_encode_status(calls *c);
inferscale_status calls_run_encode_wait(calls *c);
inferscale_status calls_run_ask(calls *c);
inferscale_status calls_run_ask_text(calls *c);
inferscale_status calls_run_dry(calls *c);
inferscale_status calls_run_chat_open(calls *c);
void calls_have_chat(calls *c);
void calls_have_talked(calls *c);
inferscale_status calls_run_say(calls *c);
void calls_talk_on(calls *c, inferscale_status st);
inferscale_status calls_run_chat_close(calls *c);
void calls_have_conversed(calls *c);
inferscale_status calls_run_complete(calls *c);
inferscale_status calls_run_complete_second(calls *c);
void calls_converse_on(calls *c, inferscale_status st);
inferscale_status calls_run_tokenize(calls *c);
inferscale_status calls_run_embed(calls *c);
inferscale_status calls_run_embed_whole(calls *c);

/* ---- calls_keep.c -------------------------------------------------------------------------------------------------------- */

void calls_close_segment(calls *c, inferscale_status st);
void calls_have_segment(calls *c);
inferscale_status calls_run_segment_open(calls *c);
inferscale_status calls_run_segment_read(calls *c);
void calls_drop_segment(calls *c, inferscale_status st);
inferscale_status calls_run_fsck(calls *c);
inferscale_status calls_run_repair(calls *c);
void calls_sound(calls *c, inferscale_status st);
inferscale_status calls_run_gc(calls *c);
inferscale_status calls_run_backup(calls *c);
void calls_backup_is_whole(calls *c, inferscale_status st);
void calls_have_backup(calls *c);
inferscale_status calls_run_restore(calls *c);
void calls_restored_or_not(calls *c, inferscale_status st);
inferscale_status calls_run_usage(calls *c);
inferscale_status calls_run_rebuild(calls *c);

#endif
