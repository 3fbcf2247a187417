/*
 * What the calling thread allocates while it counts: by malloc(), whose definitions here win over libc's in the whole
 * process, and in the library's own heap, which counts per thread. LIBVMA_COUNTER is where, from harness/allocations.rs.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

static __thread volatile int counting;
static __thread volatile long of_libc;
static __thread uint64_t of_library;

void *malloc(size_t size)
{
	of_libc += counting;
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	of_libc += counting;
	return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
	of_libc += counting;
	return __libc_realloc(old, size);
}

/* The counter of this thread, from the object whose name ends in libvma.so. */
static int find_counter(struct dl_phdr_info *object, size_t size, void *found)
{
	const char *end = strstr(object->dlpi_name, "libvma.so");
	(void)size;
	if (end == NULL || object->dlpi_tls_data == NULL)
		return 0;
	*(uint64_t **)found = (uint64_t *)((char *)object->dlpi_tls_data + strtoul(getenv("LIBVMA_COUNTER"), NULL, 16));
	return 1;
}

static uint64_t library_count(void)
{
	uint64_t *counter = NULL;
	if (getenv("LIBVMA_COUNTER") == NULL || !dl_iterate_phdr(find_counter, &counter) || *counter == 0) {
		fputs("no allocation of the library is counted\n", stderr);
		exit(1);
	}
	return *counter;
}

static void start_counting(void)
{
	of_library = library_count();
	of_libc = 0;
	counting = 1;
}

static long stop_counting(void)
{
	counting = 0;
	return of_libc + (long)(library_count() - of_library);
}
