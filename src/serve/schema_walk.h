/* schema_walk.h - what the two halves of the schema's walk share: schema.c goes from part to part, schema_types.c writes each
 * type's rule. */
#ifndef IS_SERVE_SCHEMA_WALK_H
#define IS_SERVE_SCHEMA_WALK_H

#include "serve/schema.h"

/* A schema that has a rule, or gets one. Which values are finite is settled at the end: a node is if all it must hold are, or,
 * with `any`, one of its alternatives is. */
typedef struct is_schema_node {
    json_t *schema;
    unsigned rule;
    int open_at;               /* how many objects and arrays stand around it, while it is walked; -1 = it has been */
    bool any, finite;
    unsigned n_needs;          /* entries of the walk's needs that are this node's */
    char where[160];
} is_schema_node;

typedef struct is_schema_need { unsigned node, other; } is_schema_need;

typedef struct is_schema_walk {
    is_grammar *g;
    json_t *root;
    const char *base;          /* the schema's place in the request */
    char *where;               /* out: the place of what is wrong */
    size_t where_size;
    is_schema_node *nodes;
    unsigned n_nodes, cap_nodes;
    is_schema_need *needs;
    unsigned n_needs, cap_needs;
    int depth, around;
} is_schema_walk;

enum { IS_T_OBJECT, IS_T_ARRAY, IS_T_STRING, IS_T_INTEGER, IS_T_NUMBER, IS_T_BOOLEAN, IS_T_NULL, IS_N_TYPES };

/* schema.c */
is_status is_schema_refuse(is_schema_walk *w, is_status st, const char *where, const char *keyword, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
is_status is_schema_no_memory(void);
is_status is_schema_need_node(is_schema_walk *w, unsigned of, unsigned other);
/* The node of a part inside an object or array; it is made if it is not there. */
is_status is_schema_inside(is_schema_walk *w, json_t *schema, const char *where, unsigned *out);

/* schema_types.c: each appends the right-hand side of a rule to b. */
int is_schema_type(const char *name); /* -1 = there is none of this name */
is_status is_schema_write_type(is_schema_walk *w, json_t *schema, const char *where, int type, unsigned self, is_buf *b);
/* enum (values) or const (NULL); those that `type` rules out are left out. */
is_status is_schema_write_values(is_schema_walk *w, json_t *schema, const char *where, is_buf *b, json_t *values);

#endif
