/* store_codec.c - see store_codec.h. The name stands in the bank (`home.codec`); what it means depends on the engine. */
#include "api/store_codec.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/words.h"

static void copy_name(char to[IS_BANK_CODEC_BYTES], const char *from)
{
    snprintf(to, IS_BANK_CODEC_BYTES, "%s", from);
}

static const char *shown(const char *name)
{
    return name[0] ? name : "the default";
}

/* It is the store's from now on. Where that cannot be written down, it is this handle's alone. */
static is_status keep_named(inferscale *is, const char *before)
{
    is_status st = is_bank_set_codec(is->bank, is->codec);

    is->codec_alone = st != INFERSCALE_OK;
    if (st == INFERSCALE_E_FULL || st == INFERSCALE_E_READONLY) {
        is_log(IS_LOG_WARN, "the store does not keep the codec %s that was named: %s", shown(is->codec), is_error());
        return INFERSCALE_OK;
    }
    if (st != INFERSCALE_OK || !before[0]) return st;
    is->codec_told = true;
    is_log(IS_LOG_WARN,
           "rows change their codec: it was %s and is %s from now on, for every program that uses this store and names none;"
           " %s brings them into it, or a server in idle time",
           before, shown(is->codec), is_words(IS_CALL_ENCODE));
    return INFERSCALE_OK;
}

is_status is_handle_open_codec(inferscale *is)
{
    char store[IS_BANK_CODEC_BYTES];

    is->codec_alone = is->read_only;
    IS_TRY(is_bank_codec(is->bank, store));
    if (!is->codec_named) copy_name(is->codec, store);
    if (is->read_only || strcmp(is->codec, store) == 0) return INFERSCALE_OK;
    return keep_named(is, store);
}

void is_handle_codec_name(inferscale *is, char out[IS_BANK_CODEC_BYTES])
{
    pthread_mutex_lock(&is->codec_lock);
    copy_name(out, is->codec);
    pthread_mutex_unlock(&is->codec_lock);
}

static is_codec codec_of(const char *name, const is_engine_info *model)
{
    is_codec codec;

    if (strcmp(name, "auto") == 0) return model->exact_codec;
    if (name[0] && is_codec_parse(name, &codec) == INFERSCALE_OK) return codec;
    return model->default_codec;
}

is_codec is_handle_codec(inferscale *is, is_engine *engine)
{
    is_codec codec;

    pthread_mutex_lock(&is->codec_lock);
    codec = codec_of(is->codec, is_engine_describe(engine));
    pthread_mutex_unlock(&is->codec_lock);
    return codec;
}

void is_handle_set_profile(inferscale *is, is_profile *profile)
{
    is->profiles[profile->codec] = profile;
    __atomic_store_n(&is->profile, profile, __ATOMIC_RELEASE);
}

/* Under the lock. *before: the codec of the profile that was replaced. */
static is_status follow(inferscale *is, const char *name, bool *changed, is_codec *before)
{
    const is_profile *now = is_handle_profile(is);
    is_codec codec;

    copy_name(is->codec, name);
    if (!now) return INFERSCALE_OK;
    codec = codec_of(is->codec, is_engine_describe(is->engine));
    *before = now->codec;
    if (codec == now->codec) return INFERSCALE_OK;
    if (!is->profiles[codec]) IS_TRY(is_profile_in(now, codec, &is->profiles[codec]));
    __atomic_store_n(&is->profile, is->profiles[codec], __ATOMIC_RELEASE);
    *changed = true;
    return INFERSCALE_OK;
}

is_status is_handle_follow_codec(inferscale *is, is_bank *bank)
{
    char name[IS_BANK_CODEC_BYTES];
    is_codec before = IS_CODEC_F32;
    bool changed = false;
    is_status st;

    if (is->codec_alone) return INFERSCALE_OK;
    IS_TRY(is_bank_codec(bank, name));
    pthread_mutex_lock(&is->codec_lock);
    st = follow(is, name, &changed, &before);
    pthread_mutex_unlock(&is->codec_lock);
    if (changed)
        is_log(IS_LOG_WARN, "rows change their codec: another program named %s for this store, and this one follows; before %s",
               shown(name), is_codec_name(before));
    return st;
}

bool is_handle_other_codec(inferscale *is, const is_partition *p, int64_t fact_id, is_codec *codec)
{
    const is_profile *profile = is_handle_profile(is);
    bool other = false;

    for (int i = 0; i < IS_CODECS; i++) {
        is_segment_row *rows = NULL;
        size_t n = 0;

        if (is_bank_segments(is->bank, p, profile->in_codec[i], NULL, fact_id, &rows, &n) != INFERSCALE_OK) n = 0;
        is_free(rows);
        if (n && (is_codec)i == profile->codec) return false;
        if (n) *codec = (is_codec)i;
        other = other || n > 0;
    }
    return other;
}

is_status is_handle_count_others(inferscale *is, uint64_t *n, is_codec *codec)
{
    const is_profile *profile = is_handle_profile(is);

    *n = 0;
    for (int i = 0; i < IS_CODECS; i++) {
        uint64_t rows = 0, bytes = 0;

        if ((is_codec)i == profile->codec) continue;
        IS_TRY(is_bank_count_view(is->bank, NULL, profile->in_codec[i], &rows, &bytes));
        if (rows) *codec = (is_codec)i;
        *n += rows;
    }
    return INFERSCALE_OK;
}

void is_handle_free_profiles(inferscale *is)
{
    for (int codec = 0; codec < IS_CODECS; codec++) is_profile_free(is->profiles[codec]);
}
