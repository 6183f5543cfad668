/* asan: memory that nobody may touch, under AddressSanitizer; nothing elsewhere. */
#ifndef H3F_ASAN_H
#define H3F_ASAN_H

#if defined(__SANITIZE_ADDRESS__)
#define H3F_WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define H3F_WITH_ASAN 1
#endif
#endif

#ifdef H3F_WITH_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

#endif
