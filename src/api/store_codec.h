/* store_codec.h - which codec a store's rows are in: the one that was named for it last, by whatever program. */
#ifndef IS_API_STORE_CODEC_H
#define IS_API_STORE_CODEC_H

#include "api/handle.h"

/* Reads the store's codec. Where this handle named one (codec_named), that becomes the store's, unless it is read-only; a change
 * of one that was named before is logged. After the bank is open, before anything else uses the handle. */
is_status is_handle_open_codec(inferscale *is);

/* The store's codec as it was named, "" = the default. */
void is_handle_codec_name(inferscale *is, char out[IS_BANK_CODEC_BYTES]);

/* The codec that a loaded engine's rows are stored in now: the one that was named, else the engine's default. */
is_codec is_handle_codec(inferscale *is, is_engine *engine);

/* Publishes the profile that the engine was loaded with, which is the handle's from now on. */
void is_handle_set_profile(inferscale *is, is_profile *profile);

/* Another program may have named another codec since: then this handle stores and reads rows in that one from now on, and logs
 * it. Profiles that questions still use stay until the handle is closed. Does nothing for a read-only handle, and loads no model.
 * bank: a connection of the calling thread's. Errors: those of reading the bank; E_NOMEM. */
is_status is_handle_follow_codec(inferscale *is, is_bank *bank);

/* Has the fact no rows in the handle's codec, but in another one? Then *codec is that. After is_handle_engine. */
bool is_handle_other_codec(inferscale *is, const is_partition *p, int64_t fact_id, is_codec *codec);

/* Segments of all owners in other codecs than the handle's, with the same model and header; *codec: one of these codecs.
 * After is_handle_engine. */
is_status is_handle_count_others(inferscale *is, uint64_t *n, is_codec *codec);

void is_handle_free_profiles(inferscale *is);

#endif
