/* known.h - what the models of a handle were found to be when they were last loaded, so that nothing has to be loaded to learn that
 * nothing waits to be encoded.
 *
 * A record holds the fingerprints that loading gave, and every file that they came from: models, plug-ins, the engine's libraries and
 * this program. It counts as long as all of them are the same files, under the same settings. The last few records are kept in one
 * file of the cache folder; without it the models are loaded, as ever. */
#ifndef IS_API_KNOWN_H
#define IS_API_KNOWN_H

#include "api/handle.h"

/* Keeps what this handle has loaded: model and embedder, the embedder alone not. What cannot be kept is not. */
void is_known_keep(inferscale *is);

/* True: no item of the partition lacks an embedding, no fact lacks KV under one of the policies or
 * has outdated KV. False: one does, or it is not known without loading. Loads nothing; an embedder
 * elsewhere may be asked what it is. */
bool is_known_nothing_waits(inferscale *is, const is_partition *p, const is_policy *policies, size_t n);

#endif
