/* json.h - what the library reports, as JSON: the same from the command line and from the server. */
#ifndef IS_EXCHANGE_JSON_H
#define IS_EXCHANGE_JSON_H

#include <jansson.h>

#include "base/time.h"

json_t *is_json_text(const char *s);        /* bytes that are not UTF-8 become U+FFFD; NULL: null */
json_t *is_json_time(int64_t time);         /* ISO 8601; not given: null */
/* A time in a string or a number (base/time.h). what: names the member in the sentence. E_INVALID. */
is_status is_json_when(const json_t *v, const char *what, is_when *out);

/* v in a new string, to be is_free'd, whatever allocator jansson has; NULL = out of memory. */
char *is_json_string(const json_t *v);
char *is_json_shown(const json_t *v); /* to be read, not kept: 0.3 where the exact number is 0.29999999999999999 */

/* The names of INFERSCALE_FALLBACK_* bits, a list. */
json_t *is_json_fallbacks(unsigned fallbacks);
/* What a search says beside its results: words_only, fallback, fallbacks. */
void is_json_search(json_t *o, const inferscale_list *list);

enum { IS_ITEM_SCORE = 1, IS_ITEM_KV = 2 }; /* score and its parts; kv_ready of facts */
json_t *is_item_json(const inferscale_item *item, unsigned with);

const char *is_event_name(int event); /* "ADD", "UPDATE", "DELETE", "NONE" */
/* {"id", "event"} of inferscale_remember, with again, same_as, kept (a list of names) and note
 * where there is something to say. */
json_t *is_event_json(const inferscale_event *e);
/* Sets the last two of these. */
void is_json_kept(json_t *o, const inferscale_event *e);
/* What became of a text that was known, in a sentence with the next step; false = there is nothing
 * to say. */
bool is_event_text(const inferscale_event *e, char out[192]);

json_t *is_encoder_json(const inferscale_encoder_state *s);
json_t *is_usage_json(const inferscale_usage_report *u);
json_t *is_preview_json(const inferscale_preview *p);
void is_proof_json(json_t *o, const inferscale_forget_report *r); /* sets proven, needles, scanned_bytes, traces, allowed, ..., and summary: */
/* What the proof came to, in a sentence or two. */
void is_proof_text(const inferscale_forget_report *r, char out[512]);

#endif
