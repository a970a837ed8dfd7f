// SPDX-License-Identifier: MIT
/* Programs that take the place of others by execve(2).
 *
 * replaced ADDRESS: has memory at ADDRESS that nobody gave to a device. Says who it is, waits for a line, and says what has
 * become of that memory.
 * replaced ADDRESS GUARD SECRET ROUNDS: becomes itself again and again. At first in each round the device may not touch its
 * memory: it looks. Then it makes the guard page, and the device may. Ends with 0 if all was as it should be.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SIZE 4096
#define MS 1000000L

static char *map(uint64_t address)
{
	char *wanted = (char *)(uintptr_t)address;

	return mmap(wanted, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

static int is_touched(volatile const char *memory)
{
	for (int i = 0; i < SIZE; i++)
		if (memory[i] != 'n')
			return 1;
	return 0;
}

static long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000 * MS + time.tv_nsec;
}

static int again(char **words, char *memory)
{
	long rounds = atol(words[4]), until = now() + MS;
	char left[24];
	char *next[] = {words[0], words[1], words[2], words[3], left, NULL};
	char *guard;

	while (now() < until)
		if (is_touched(memory))
			return 3;
	if (rounds == 0)
		return 0;
	guard = map(strtoull(words[2], NULL, 0));
	*(uint64_t *)guard = strtoull(words[3], NULL, 0);
	for (until = now() + MS; now() < until;)
		;
	snprintf(left, sizeof(left), "%ld", rounds - 1);
	execv(words[0], next);
	return 4;
}

int main(int count, char **words)
{
	char *memory = map(strtoull(words[1], NULL, 0));

	if (memory == MAP_FAILED)
		return 2;
	memset(memory, 'n', SIZE);
	if (count == 5)
		return again(words, memory);
	printf("user %d\n", (int)geteuid());
	fflush(stdout);
	getchar();
	puts(is_touched(memory) ? "touched" : "untouched");
	return 0;
}
