/* cpu.c - what this processor can do, asked once. */
#include "base/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static is_simd level;

static const struct { const char *env, *name; } names[] = {
    [IS_SIMD_SCALAR] = { "scalar", "scalar" },
    [IS_SIMD_AVX2] = { "avx2", "AVX2" },
    [IS_SIMD_AVX512] = { "avx512", "AVX-512" },
    [IS_SIMD_VNNI] = { "vnni", "AVX-512 VNNI" },
};

static is_simd detect(void)
{
#if defined(__x86_64__)
    unsigned a, b, c = 0, d;

    __builtin_cpu_init(); /* its answers include whether the OS saves the wide registers */
    if (!__get_cpuid(1, &a, &b, &c, &d)) c = 0;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !(c & bit_F16C)) return IS_SIMD_SCALAR;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512dq"))
        return IS_SIMD_AVX2;
    return __builtin_cpu_supports("avx512vnni") ? IS_SIMD_VNNI : IS_SIMD_AVX512;
#else
    return IS_SIMD_SCALAR;
#endif
}

static void decide(void)
{
    const char *wish = getenv("INFERSCALE_SIMD");

    level = detect();
    for (int i = 0; wish && i <= IS_SIMD_VNNI; i++)
        if (strcmp(wish, names[i].env) == 0 && (is_simd)i < level) level = (is_simd)i;
}

is_simd is_cpu_simd(void)
{
    pthread_once(&once, decide);
    return level;
}

const char *is_cpu_simd_name(is_simd l)
{
    return (unsigned)l <= IS_SIMD_VNNI ? names[l].name : "unknown";
}

/* The first number in a file of one line; -1 if there is none. */
static long read_number(const char *fmt, int cpu)
{
    char path[128];
    long v = -1;
    FILE *f;

    snprintf(path, sizeof path, fmt, cpu);
    f = fopen(path, "re");
    if (!f) return -1;
    if (fscanf(f, "%ld", &v) != 1) v = -1;
    fclose(f);
    return v;
}

/* A core counts once: at the first of its hardware threads that this process may use. */
unsigned is_cpu_physical_cores(void)
{
    static const char core[] = "/sys/devices/system/cpu/cpu%d/topology/core_id";
    static const char package[] = "/sys/devices/system/cpu/cpu%d/topology/physical_package_id";
    long seen[CPU_SETSIZE][2];
    unsigned n = 0;
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        bool known = false;
        long id, pkg;

        if (!CPU_ISSET(cpu, &set)) continue;
        id = read_number(core, cpu);
        pkg = read_number(package, cpu);
        if (id < 0) id = CPU_SETSIZE + cpu; /* not told: take it for a core of its own */
        for (unsigned i = 0; i < n && !known; i++) known = seen[i][0] == id && seen[i][1] == pkg;
        if (known) continue;
        seen[n][0] = id;
        seen[n++][1] = pkg;
    }
    return n ? n : 1;
}

int is_cpu_pressure(void)
{
    FILE *f = fopen("/proc/pressure/cpu", "re");
    double percent = -1;

    if (!f) return -1;
    if (fscanf(f, "some avg10=%lf", &percent) != 1 || !(percent >= 0 && percent <= 100)) percent = -1;
    fclose(f);
    return (int)percent;
}

void is_cpu_model(char out[64])
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");

    snprintf(out, 64, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;

        if (!colon) continue;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(out, 64, "%.*s", (int)strcspn(colon, "\n"), colon);
        break;
    }
    if (f) fclose(f);
}
