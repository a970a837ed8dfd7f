// SPDX-License-Identifier: MIT
/* A page by which the device recognizes this address space.
 *
 * The device reaches a program's memory by the number of its process, which may stand for another program one day:
 * after execve(2), or when the number is used again. So each connection has a page at an address that is drawn, far from
 * where the kernel puts anything by itself, with a word in it that is drawn, too. Each access of the device goes to that
 * page first, in the same system call; where it is not there, nothing else is touched (docs/security.md).
 */
#include <sys/mman.h>
#include <sys/syscall.h>

#include "driver.h"

#define PAGES 16 /* bits of the largest size of a page */
#define TRIES 16

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

/* A sanitizer's shadow of that address may not exist. */
#define UNCHECKED __attribute__((noinline, no_sanitize("address"), no_sanitize("thread"), no_sanitize("undefined")))

static UNCHECKED void store(uint64_t *guard, uint64_t secret)
{
	*guard = secret;
}

UNCHECKED uint64_t sv_read_guard(const uint64_t *guard)
{
	return *guard;
}

/* An address in the middle quarter of the address space. Programs are loaded and memory is mapped at two thirds, at a third
 * or a quarter, and at the end of it, with at most 1/128 for chance; the stack is at its end, which tells how large it is.
 */
static uint64_t draw(uint64_t number)
{
	int bits = 64 - __builtin_clzll((uintptr_t)&number);
	uint64_t quarter = 1ULL << (bits - 2);

	return (quarter + quarter / 2 + number % quarter) >> PAGES << PAGES;
}

/* ThreadSanitizer takes the whole middle. What it leaves to programs, and the kernel to nobody, lies below 512 GiB. */
static uint64_t draw_low(uint64_t number)
{
	return ((64ULL << 30) + number % (384ULL << 30)) >> PAGES << PAGES;
}

static bool fill(uint64_t *numbers, size_t size)
{
	return syscall(SYS_getrandom, numbers, size, 0) == (long)size;
}

/* Makes the page; NULL with errno. System calls as such: a sanitizer's mmap moves what is mapped at such an address. */
uint64_t *sv_make_guard(void)
{
	const size_t size = sysconf(_SC_PAGESIZE);
	uint64_t numbers[2];

	for (int i = 0; i < 2 * TRIES && fill(numbers, sizeof(numbers)); i++) {
		uint64_t wanted = i < TRIES ? draw(numbers[0]) : draw_low(numbers[0]);
		long made = syscall(SYS_mmap, wanted, size, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0L);

		if (made == (long)wanted) {
			uint64_t *guard = (uint64_t *)(uintptr_t)wanted;

			store(guard, numbers[1]);
			madvise(guard, size, MADV_DONTFORK);
			return guard;
		}
		if (made != -1) /* before Linux 4.17: where it pleases */
			syscall(SYS_munmap, made, size);
		else if (errno != EEXIST)
			break;
	}
	sv_refuse(ENOMEM, "a page by which the device recognizes this program cannot be mapped: %s", strerror(errno));
	return NULL;
}

void sv_free_guard(uint64_t *guard)
{
	if (guard)
		munmap(guard, sysconf(_SC_PAGESIZE));
}
