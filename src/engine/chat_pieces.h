/* chat_pieces.h - the literal pieces of a chat format, cut out of renderings of its template. Shared by the plug-ins that render one.
 *
 * Pieces are always used joined (system_close + user_open, user_close + assistant_open, assistant_close + user_open), so formats that
 * merge a system text into the first user turn work too: what matters is that the joints are literal. */
#ifndef IS_ENGINE_CHAT_PIECES_H
#define IS_ENGINE_CHAT_PIECES_H

#include "engine/engine.h"

/* What is said in the rendering: each stands there once. */
typedef struct is_chat_marks { const char *system, *user, *assistant, *second; } is_chat_marks;

/* whole: system, user, assistant, second user turn, opener of the answer; a format without a place for a system text shows none, and
 * opens the user's turn with it. alone: one user turn without an opener; NULL = not known. bos (NULL = none) is taken off the front, since
 * tokenising adds it. f must be empty; *found = it is complete, else a mark is missing, and it holds some pieces. E_NOMEM. */
is_status is_chat_cut(const is_chat_marks *m, const char *whole, const char *alone, const char *bos, is_chat_format *f, bool *found);
/* "User: ... Assistant:", for models without a format of use; f must be empty. E_NOMEM. */
is_status is_chat_plain(is_chat_format *f);
void is_chat_format_free(is_chat_format *f); /* and empties it */

#endif
