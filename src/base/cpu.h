/* cpu.h - which SIMD our kernels may use. Decided once from CPUID; INFERSCALE_SIMD=scalar|avx2|avx512 lowers it (never raises). */
#ifndef IS_BASE_CPU_H
#define IS_BASE_CPU_H

typedef enum is_simd {
    IS_SIMD_SCALAR = 0,
    IS_SIMD_AVX2 = 1,   /* + FMA, F16C */
    IS_SIMD_AVX512 = 2, /* F, BW, VL, DQ */
    IS_SIMD_VNNI = 3    /* AVX512 + VNNI */
} is_simd;

is_simd is_cpu_simd(void);
const char *is_cpu_simd_name(is_simd level);
unsigned is_cpu_physical_cores(void);       /* >= 1; respects the process's affinity */
int is_cpu_pressure(void);                  /* percent of the last ten seconds in which some task waited for a CPU (Linux's pressure
                                               stall information); -1 = not known. Reads a file: some 10 microseconds */
void is_cpu_model(char out[64]);            /* "Intel(R) Xeon(R) ..."; "unknown" */

#endif
