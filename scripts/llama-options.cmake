# Read by CMake before llama-cpp-python's project: a normal variable wins over the cache entry that the package forces on.
# The helper library of llama.cpp's own programs is half of the compile time, and nothing here links it.
set(LLAMA_BUILD_COMMON OFF)
