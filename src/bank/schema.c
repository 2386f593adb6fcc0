/* schema.c - the tables. Rules that hold for all of them:
 *
 * - Every row belongs to a partition, and the partition stands first in the key by which it is read: a statement cannot reach
 *   another partition's rows by forgetting a condition, and a partition's rows lie together.
 * - Ids are never used again (AUTOINCREMENT), so a stale id in a cache cannot come to mean something else.
 * - Text that was not given is '', a number that was not given is 0: no NULLs, no three-valued logic. */
#include "bank/schema.h"

/* Version 1: what is remembered, and the books of embeddings and segments.
 *
 * items: facts (kind 1) and turns (kind 2) share one id space; version is the current one. fact_versions holds every version of
 * a fact, turns the turns. owner_kind: 1 user, 2 agent, 3 run, 4 app. text_hash: XXH3-64 of the text, to find equal texts. */
static const char version_1[] =
    "CREATE TABLE partitions("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  tenant TEXT NOT NULL,"
    "  owner_kind INTEGER NOT NULL CHECK(owner_kind BETWEEN 1 AND 4),"
    "  owner TEXT NOT NULL CHECK(owner <> ''),"
    "  key BLOB NOT NULL CHECK(length(key) = 32),"
    "  epoch INTEGER NOT NULL DEFAULT 1,"
    "  revision INTEGER NOT NULL DEFAULT 0,"
    "  created INTEGER NOT NULL,"
    "  UNIQUE(tenant, owner_kind, owner));"

    "CREATE TABLE items("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  partition_id INTEGER NOT NULL REFERENCES partitions(id),"
    "  kind INTEGER NOT NULL CHECK(kind IN (1, 2)),"
    "  version INTEGER NOT NULL CHECK(version > 0),"
    "  user TEXT NOT NULL, agent TEXT NOT NULL, run TEXT NOT NULL, app TEXT NOT NULL,"
    "  UNIQUE(partition_id, id));"
    "CREATE INDEX items_by_kind ON items(partition_id, kind, id);"

    "CREATE TABLE fact_versions("
    "  partition_id INTEGER NOT NULL, item_id INTEGER NOT NULL, version INTEGER NOT NULL,"
    "  text TEXT NOT NULL, text_hash INTEGER NOT NULL,"
    "  event_time INTEGER NOT NULL, write_time INTEGER NOT NULL,"
    "  valid_from INTEGER NOT NULL, valid_to INTEGER NOT NULL, expires INTEGER NOT NULL,"
    "  source_turn INTEGER NOT NULL,"
    "  metadata TEXT NOT NULL," /* a JSON object, checked before it is written */
    "  PRIMARY KEY(partition_id, item_id, version),"
    "  FOREIGN KEY(partition_id, item_id) REFERENCES items(partition_id, id) ON DELETE CASCADE) WITHOUT ROWID;"
    "CREATE INDEX fact_versions_by_text ON fact_versions(partition_id, text_hash);"
    "CREATE INDEX fact_versions_by_source ON fact_versions(partition_id, source_turn) WHERE source_turn <> 0;"

    "CREATE TABLE conversations("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  partition_id INTEGER NOT NULL REFERENCES partitions(id),"
    "  name TEXT NOT NULL,"
    "  UNIQUE(partition_id, name), UNIQUE(partition_id, id));"

    "CREATE TABLE turns("
    "  partition_id INTEGER NOT NULL, item_id INTEGER NOT NULL,"
    "  conversation_id INTEGER NOT NULL,"
    "  speaker TEXT NOT NULL, text TEXT NOT NULL, external_id TEXT NOT NULL,"
    "  time INTEGER NOT NULL, write_time INTEGER NOT NULL,"
    "  PRIMARY KEY(partition_id, item_id),"
    "  FOREIGN KEY(partition_id, conversation_id) REFERENCES conversations(partition_id, id),"
    "  FOREIGN KEY(partition_id, item_id) REFERENCES items(partition_id, id) ON DELETE CASCADE) WITHOUT ROWID;"
    "CREATE INDEX turns_by_conversation ON turns(partition_id, conversation_id, item_id);"
    "CREATE INDEX turns_by_external_id ON turns(partition_id, external_id) WHERE external_id <> '';"

    "CREATE TABLE embeddings("
    "  partition_id INTEGER NOT NULL, item_id INTEGER NOT NULL,"
    "  fingerprint BLOB NOT NULL CHECK(length(fingerprint) = 32),"
    "  version INTEGER NOT NULL, scale REAL NOT NULL,"
    "  q BLOB NOT NULL," /* int8 values; the vector is scale * q */
    "  PRIMARY KEY(partition_id, item_id, fingerprint),"
    "  FOREIGN KEY(partition_id, item_id) REFERENCES items(partition_id, id) ON DELETE CASCADE) WITHOUT ROWID;"

    "CREATE TABLE segments("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  partition_id INTEGER NOT NULL, item_id INTEGER NOT NULL, version INTEGER NOT NULL,"
    "  name BLOB NOT NULL CHECK(length(name) = 32),"
    "  fingerprint BLOB NOT NULL CHECK(length(fingerprint) = 32),"
    "  policy TEXT NOT NULL,"
    "  n_tokens INTEGER NOT NULL, n_context INTEGER NOT NULL, n_computed INTEGER NOT NULL, bytes INTEGER NOT NULL,"
    "  UNIQUE(partition_id, name, item_id, policy)," /* equal texts in equal contexts share a name and a file */
    "  FOREIGN KEY(partition_id, item_id) REFERENCES items(partition_id, id));"
    "CREATE INDEX segments_by_item ON segments(partition_id, item_id, fingerprint, policy);"

    /* The dependency table: which texts each segment's rows were computed from. No cascade from items: forgetting must drop the
     * segments first, and a bug in that is an error here, not a segment without a history. */
    "CREATE TABLE segment_deps("
    "  partition_id INTEGER NOT NULL, item_id INTEGER NOT NULL, version INTEGER NOT NULL,"
    "  segment_id INTEGER NOT NULL REFERENCES segments(id) ON DELETE CASCADE,"
    "  PRIMARY KEY(partition_id, item_id, version, segment_id),"
    "  FOREIGN KEY(partition_id, item_id) REFERENCES items(partition_id, id)) WITHOUT ROWID;"
    "CREATE INDEX segment_deps_by_segment ON segment_deps(segment_id);";

/* Version 2: placements (which memory stood before which turn of a conversation), and the names of segment files that must go:
 * they are written in the transaction that forgets, so that a crash before the files are gone does not lose them. */
static const char version_2[] =
    "CREATE TABLE placements("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  partition_id INTEGER NOT NULL REFERENCES partitions(id),"
    "  profile BLOB NOT NULL CHECK(length(profile) = 32),"
    "  prefix BLOB NOT NULL CHECK(length(prefix) = 32)," /* hash of the messages before the turn */
    "  write_time INTEGER NOT NULL,"
    "  UNIQUE(partition_id, profile, prefix));"
    "CREATE TABLE placement_items("
    "  partition_id INTEGER NOT NULL, item_id INTEGER NOT NULL, version INTEGER NOT NULL,"
    "  placement_id INTEGER NOT NULL REFERENCES placements(id) ON DELETE CASCADE,"
    "  position INTEGER NOT NULL,"
    "  PRIMARY KEY(placement_id, position),"
    "  FOREIGN KEY(partition_id, item_id) REFERENCES items(partition_id, id)) WITHOUT ROWID;"
    "CREATE INDEX placement_items_by_item ON placement_items(partition_id, item_id);"

    "CREATE TABLE doomed("
    "  partition_id INTEGER NOT NULL, name BLOB NOT NULL CHECK(length(name) = 32),"
    "  PRIMARY KEY(name, partition_id)) WITHOUT ROWID;";

/* Version 3: a memory that lives. Items that are pinned, withdrawn (turns whose fact was forgotten: kept as the conversation's
 * record, never found, never in a context) or superseded; variants of a fact's segment (how many passes its rows are a mean of;
 * lead: the rows of a fact that only stood at the head of another page as its overlap); pages (docs/design.md): which facts were encoded
 * together, in which order; tombstones: keyed hashes of forgotten texts, so that they are not extracted again. */
static const char version_3[] =
    /* The key's columns first: SQLite 3.40's integrity check takes columns before a key that ends a row for NULLs. */
    "CREATE TABLE placed("
    "  placement_id INTEGER NOT NULL REFERENCES placements(id) ON DELETE CASCADE,"
    "  position INTEGER NOT NULL,"
    "  partition_id INTEGER NOT NULL, item_id INTEGER NOT NULL, version INTEGER NOT NULL,"
    "  PRIMARY KEY(placement_id, position),"
    "  FOREIGN KEY(partition_id, item_id) REFERENCES items(partition_id, id)) WITHOUT ROWID;"
    "INSERT INTO placed SELECT placement_id, position, partition_id, item_id, version FROM placement_items;"
    "DROP TABLE placement_items;"
    "ALTER TABLE placed RENAME TO placement_items;"
    "CREATE INDEX placement_items_by_item ON placement_items(partition_id, item_id);"

    "ALTER TABLE items ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE items ADD COLUMN withdrawn INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE items ADD COLUMN superseded_by INTEGER NOT NULL DEFAULT 0;" /* the fact's id; 0 = none */
    "CREATE INDEX items_by_superseding ON items(partition_id, superseded_by) WHERE superseded_by <> 0;"
    "CREATE INDEX items_pinned ON items(partition_id, id) WHERE pinned = 1;"
    "ALTER TABLE segments ADD COLUMN n_passes INTEGER NOT NULL DEFAULT 1;"
    "ALTER TABLE segments ADD COLUMN lead INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE segments ADD COLUMN write_time INTEGER NOT NULL DEFAULT 0;"

    "CREATE TABLE pages("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  partition_id INTEGER NOT NULL REFERENCES partitions(id),"
    "  fingerprint BLOB NOT NULL CHECK(length(fingerprint) = 32)," /* of the model and profile, as in segments */
    "  policy TEXT NOT NULL, lane INTEGER NOT NULL,"
    "  open INTEGER NOT NULL DEFAULT 1,"
    "  UNIQUE(partition_id, id));"
    "CREATE INDEX pages_by_view ON pages(partition_id, fingerprint, policy, lane, id);"
    "CREATE TABLE page_facts("
    "  partition_id INTEGER NOT NULL, page_id INTEGER NOT NULL, slot INTEGER NOT NULL,"
    "  item_id INTEGER NOT NULL, version INTEGER NOT NULL,"
    "  lead INTEGER NOT NULL," /* 1: overlap from the lane's page before, context only */
    "  PRIMARY KEY(page_id, slot),"
    "  FOREIGN KEY(partition_id, page_id) REFERENCES pages(partition_id, id) ON DELETE CASCADE,"
    "  FOREIGN KEY(partition_id, item_id) REFERENCES items(partition_id, id) ON DELETE CASCADE) WITHOUT ROWID;"
    "CREATE INDEX page_facts_by_item ON page_facts(partition_id, item_id);"

    "CREATE TABLE tombstones("
    "  partition_id INTEGER NOT NULL REFERENCES partitions(id),"
    "  hash BLOB NOT NULL CHECK(length(hash) = 32)," /* keyed by the partition, of the normalised text */
    "  write_time INTEGER NOT NULL,"
    "  PRIMARY KEY(partition_id, hash)) WITHOUT ROWID;";

/* Version 4: a vector has a checksum, so that fsck sees a changed value inside one. vector_sum (functions.c) is ours; vectors that are
 * there get theirs as they are. */
static const char version_4[] =
    "ALTER TABLE embeddings ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;" /* XXH3-64 of item, version, scale and q */
    "UPDATE embeddings SET checksum = vector_sum(item_id, version, scale, q);"
    "CREATE INDEX placements_newest ON placements(partition_id, id);"; /* the oldest go when there are too many */

/* Version 5: no other tables. The pages' unused middles are zero in the file (gaps.h), and only programs that keep them so may write. */
static const char version_5[] = "";

/* Version 6: the identity of the home folder (home.h), which the file beside the bank holds too; '' = not given yet. One row. */
static const char version_6[] =
    "CREATE TABLE home(id BLOB NOT NULL);"
    "INSERT INTO home VALUES(x'');";

/* Whether a row of the table is a version that counts as undated: its time is that of its own writing, or, after a change that kept the
 * time, of the writing of an older version. */
#define WRITTEN_THEN                                                                                                           \
    "EXISTS(SELECT 1 FROM fact_versions o WHERE o.partition_id = fact_versions.partition_id AND o.item_id ="                   \
    " fact_versions.item_id AND o.version <= fact_versions.version AND o.write_time = fact_versions.event_time)"

/* Version 7: dated = the event time was given; until now the time of writing stood in its place, in prompts too. outdated = rows
 * computed from a line with such a date, of the fact itself or in its context: they serve until they are replaced (is_bank_outdated).
 * Pages with such a line are laid again; what was kept for their overlap, and rows of facts that nobody encodes again, goes at once. */
static const char version_7[] =
    "ALTER TABLE fact_versions ADD COLUMN dated INTEGER NOT NULL DEFAULT 1;"
    "ALTER TABLE turns ADD COLUMN dated INTEGER NOT NULL DEFAULT 1;"
    "ALTER TABLE segments ADD COLUMN outdated INTEGER NOT NULL DEFAULT 0;"
    "UPDATE fact_versions SET dated = 0 WHERE " WRITTEN_THEN ";"
    "UPDATE turns SET dated = 0 WHERE time = write_time;"

    "UPDATE segments SET outdated = 1 WHERE id IN (SELECT d.segment_id FROM segment_deps d JOIN fact_versions f ON f.partition_id ="
    "  d.partition_id AND f.item_id = d.item_id AND f.version = d.version WHERE f.dated = 0 UNION SELECT d.segment_id FROM segment_deps d"
    "  JOIN turns t ON t.partition_id = d.partition_id AND t.item_id = d.item_id WHERE t.dated = 0);"
    "CREATE TEMP TABLE relaid AS SELECT DISTINCT g.page_id AS id FROM page_facts g JOIN fact_versions f ON f.partition_id = g.partition_id"
    "  AND f.item_id = g.item_id AND f.version = g.version WHERE f.dated = 0;"
    "UPDATE segments SET outdated = 1 WHERE id IN (SELECT s.id FROM temp.relaid r JOIN pages p ON p.id = r.id JOIN page_facts g ON"
    "  g.page_id = p.id JOIN segments s ON s.partition_id = p.partition_id AND s.item_id = g.item_id AND s.fingerprint = p.fingerprint"
    "  AND s.policy = p.policy);"
    "DELETE FROM pages WHERE id IN (SELECT id FROM temp.relaid);"
    "DROP TABLE temp.relaid;"

    "CREATE TEMP TABLE ended AS SELECT s.id, s.partition_id, s.name FROM segments s WHERE s.outdated = 1 AND (s.lead = 1 OR EXISTS("
    "  SELECT 1 FROM fact_versions f WHERE f.partition_id = s.partition_id AND f.item_id = s.item_id AND f.version = s.version AND"
    "  ((f.expires <> 0 AND f.expires <= CAST(strftime('%s', 'now') AS INTEGER)) OR"
    "  (f.valid_to <> 0 AND f.valid_to <= CAST(strftime('%s', 'now') AS INTEGER)))));"
    "DELETE FROM segments WHERE id IN (SELECT id FROM temp.ended);"
    "INSERT OR IGNORE INTO doomed(partition_id, name) SELECT e.partition_id, e.name FROM temp.ended e WHERE NOT EXISTS(SELECT 1 FROM"
    "  segments s WHERE s.partition_id = e.partition_id AND s.name = e.name);"
    "DROP TABLE temp.ended;"
    "CREATE INDEX segments_outdated ON segments(partition_id, fingerprint, item_id) WHERE outdated = 1;";

/* Version 8: how each embedder's cosines are to be read (embed/calibrate.h). Of the whole store, not of a partition: it was
 * measured on texts that are the program's own. And `doomed` with the key's columns first: while a name stood there, SQLite
 * 3.40's quick check called the database damaged (see version 3). */
static const char version_8[] =
    "CREATE TABLE doomed_8("
    "  name BLOB NOT NULL CHECK(length(name) = 32), partition_id INTEGER NOT NULL,"
    "  PRIMARY KEY(name, partition_id)) WITHOUT ROWID;"
    "INSERT INTO doomed_8(name, partition_id) SELECT name, partition_id FROM doomed;"
    "DROP TABLE doomed;"
    "ALTER TABLE doomed_8 RENAME TO doomed;"
    "CREATE TABLE calibrations("
    "  fingerprint BLOB PRIMARY KEY NOT NULL CHECK(length(fingerprint) = 32),"
    "  low REAL NOT NULL, high REAL NOT NULL CHECK(low < high)) WITHOUT ROWID;";

/* Version 9: wide = the rows are still in the type of the engine's cache, while their view's codec is
 * narrower: the page that they belong to was open when they were made. */
static const char version_9[] =
    "ALTER TABLE segments ADD COLUMN wide INTEGER NOT NULL DEFAULT 0;"
    "CREATE INDEX segments_wide ON segments(partition_id, fingerprint) WHERE wide = 1;";

/* Version 10: the codec that was named for this store last, as it was named (f16, auto, ...); '' = the default. */
static const char version_10[] = "ALTER TABLE home ADD COLUMN codec TEXT NOT NULL DEFAULT '';";

const char *const bank_schema_steps[BANK_SCHEMA_VERSION] = {
    version_1, version_2, version_3, version_4, version_5,
    version_6, version_7, version_8, version_9, version_10,
};
