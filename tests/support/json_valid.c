/* json_valid.c - the validator: each keyword narrows, as the standard has it. */
#include "support/json_valid.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static bool of_type(const char *type, json_t *v)
{
    if (strcmp(type, "object") == 0) return json_is_object(v);
    if (strcmp(type, "array") == 0) return json_is_array(v);
    if (strcmp(type, "string") == 0) return json_is_string(v);
    if (strcmp(type, "boolean") == 0) return json_is_boolean(v);
    if (strcmp(type, "null") == 0) return json_is_null(v);
    if (strcmp(type, "number") == 0) return json_is_number(v);
    return strcmp(type, "integer") == 0 && json_is_number(v) && json_number_value(v) == floor(json_number_value(v));
}

static size_t characters(const char *s)
{
    size_t n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

/* A date of the calendar, by the library's own calendar. */
static bool is_date(const char *s, size_t n)
{
    struct tm t = { 0 }, again;
    int end = 0;
    if (n != 10 || sscanf(s, "%4d-%2d-%2d%n", &t.tm_year, &t.tm_mon, &t.tm_mday, &end) != 3 || end != 10) return false;
    t.tm_year -= 1900;
    t.tm_mon--;
    again = t;
    time_t at = timegm(&again);
    return at != -1 && again.tm_year == t.tm_year && again.tm_mon == t.tm_mon && again.tm_mday == t.tm_mday;
}

static bool is_time(const char *s)
{
    int h, m, sec, end = 0, zh, zm;
    if (sscanf(s, "%2d:%2d:%2d%n", &h, &m, &sec, &end) != 3 || end != 8 || h > 23 || m > 59 || sec > 59) return false;
    s += 8;
    if (*s == '.') {
        size_t digits = strspn(s + 1, "0123456789");
        if (!digits) return false;
        s += 1 + digits;
    }
    if (strcmp(s, "Z") == 0) return true;
    if (*s != '+' && *s != '-') return false;
    return sscanf(s + 1, "%2d:%2d%n", &zh, &zm, &end) == 2 && end == 5 && !s[6] && zh < 24 && zm < 60;
}

static bool of_format(const char *format, const char *s)
{
    if (strcmp(format, "date") == 0) return is_date(s, strlen(s));
    if (strcmp(format, "time") == 0) return is_time(s);
    if (strcmp(format, "date-time") == 0) return strlen(s) > 11 && is_date(s, 10) && s[10] == 'T' && is_time(s + 11);
    if (strcmp(format, "uuid") == 0)
        return strlen(s) == 36 && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' &&
               strspn(s, "0123456789abcdef-") == 36;
    return false;
}

static bool number_holds(json_t *schema, double x)
{
    json_t *b;
    if ((b = json_object_get(schema, "minimum")) && !(x >= json_number_value(b))) return false;
    if ((b = json_object_get(schema, "maximum")) && !(x <= json_number_value(b))) return false;
    if ((b = json_object_get(schema, "exclusiveMinimum")) && !(x > json_number_value(b))) return false;
    return !((b = json_object_get(schema, "exclusiveMaximum")) && !(x < json_number_value(b)));
}

static bool string_holds(json_t *schema, const char *s)
{
    json_t *b;
    if ((b = json_object_get(schema, "minLength")) && characters(s) < (size_t)json_integer_value(b)) return false;
    if ((b = json_object_get(schema, "maxLength")) && characters(s) > (size_t)json_integer_value(b)) return false;
    return !((b = json_object_get(schema, "format")) && !of_format(json_string_value(b), s));
}

static bool array_holds(json_t *root, json_t *schema, json_t *v)
{
    json_t *b, *one;
    size_t i;
    if ((b = json_object_get(schema, "minItems")) && json_array_size(v) < (size_t)json_integer_value(b)) return false;
    if ((b = json_object_get(schema, "maxItems")) && json_array_size(v) > (size_t)json_integer_value(b)) return false;
    if ((b = json_object_get(schema, "items")))
        json_array_foreach(v, i, one)
            if (!json_valid(root, b, one)) return false;
    return true;
}

static bool object_holds(json_t *root, json_t *schema, json_t *v)
{
    json_t *properties = json_object_get(schema, "properties"), *more = json_object_get(schema, "additionalProperties"), *one;
    const char *name;
    size_t i;
    json_array_foreach(json_object_get(schema, "required"), i, one)
        if (!json_object_get(v, json_string_value(one))) return false;
    json_object_foreach(v, name, one)
    {
        json_t *p = json_object_get(properties, name);
        if (p ? !json_valid(root, p, one) : more && !json_valid(root, more, one)) return false;
    }
    return true;
}

static json_t *target(json_t *root, const char *ref)
{
    char name[128];
    json_t *at = root;
    for (ref++; *ref == '/';) {
        size_t n = strcspn(++ref, "/");
        snprintf(name, sizeof name, "%.*s", (int)n, ref);
        at = json_object_get(at, name);
        ref += n;
    }
    return at;
}

bool json_valid(json_t *root, json_t *schema, json_t *v)
{
    json_t *k, *one;
    size_t i;
    bool any = false;
    if (json_is_boolean(schema)) return json_is_true(schema);
    if ((k = json_object_get(schema, "$ref")) && !json_valid(root, target(root, json_string_value(k)), v)) return false;
    if ((k = json_object_get(schema, "const")) && !json_equal(k, v)) return false;
    if ((k = json_object_get(schema, "enum"))) {
        json_array_foreach(k, i, one) any |= json_equal(one, v);
        if (!any) return false;
    }
    if ((k = json_object_get(schema, "type"))) {
        any = json_is_string(k) && of_type(json_string_value(k), v);
        json_array_foreach(k, i, one) any |= of_type(json_string_value(one), v);
        if (!any) return false;
    }
    if ((k = json_object_get(schema, "anyOf"))) {
        any = false;
        json_array_foreach(k, i, one) any |= json_valid(root, one, v);
        if (!any) return false;
    }
    json_array_foreach(json_object_get(schema, "allOf"), i, one)
        if (!json_valid(root, one, v)) return false;
    if (json_is_number(v) && !number_holds(schema, json_number_value(v))) return false;
    if (json_is_string(v) && !string_holds(schema, json_string_value(v))) return false;
    if (json_is_array(v) && !array_holds(root, schema, v)) return false;
    return !json_is_object(v) || object_holds(root, schema, v);
}
