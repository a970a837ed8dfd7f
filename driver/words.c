// SPDX-License-Identifier: MIT
/* What the driver says to people: why a call was refused, which library a program has loaded, and what of its environment
 * means nothing here. All of it goes to stderr; docs/run.md explains it.
 */
#include <link.h>
#include <stdarg.h>
#include <stdio.h>

#include "driver.h"

static __thread char last_reason[SV_TEXT_SIZE + 1];

/* Whether a variable of the environment is set, to something but 0. */
static bool is_on(const char *name)
{
	const char *value = getenv(name);

	return value && *value && strcmp(value, "0") != 0;
}

/* -- reasons */

/* Words for the last call of this thread that failed; "" where there are none. */
SV_EXPORT const char *softverbs_last_reason(void)
{
	return last_reason;
}

static const char *errno_name(int error)
{
	static const struct {
		int error;
		const char *name;
	} names[] = {
		{EACCES, "EACCES"},
		{EADDRINUSE, "EADDRINUSE"},
		{EADDRNOTAVAIL, "EADDRNOTAVAIL"},
		{EAGAIN, "EAGAIN"},
		{EBUSY, "EBUSY"},
		{ECONNREFUSED, "ECONNREFUSED"},
		{EEXIST, "EEXIST"},
		{EFAULT, "EFAULT"},
		{EINVAL, "EINVAL"},
		{EIO, "EIO"},
		{EMFILE, "EMFILE"},
		{ENFILE, "ENFILE"},
		{ENODEV, "ENODEV"},
		{ENOENT, "ENOENT"},
		{ENOMEM, "ENOMEM"},
		{ENOSYS, "ENOSYS"},
		{EOPNOTSUPP, "EOPNOTSUPP: not supported here"},
		{EPERM, "EPERM"},
		{ERANGE, "ERANGE"},
		{ETIMEDOUT, "ETIMEDOUT"},
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (names[i].error == error)
			return names[i].name;
	return NULL;
}

/* What was printed last, and how often it came again: libraries that try things out do so many times. */
static pthread_mutex_t printing = PTHREAD_MUTEX_INITIALIZER;
static char last_printed[SV_TEXT_SIZE + 1];
static unsigned int repeats;
static bool introduced;

static void print_repeats(void)
{
	if (repeats)
		fprintf(stderr, "softverbs: (the same %u times more)\n", repeats);
	repeats = 0;
}

/* Prints the reason of this thread. A refusal need not be why a program fails, and nobody here can know: so that is said
 * once, and the errno is named. An `error` of 0 is a completion with an error, which has a cause.
 */
static void print_reason(int error)
{
	const char *name = errno_name(error);
	/* In a child of fork(2) another thread of the parent may hold the lock for ever: then nothing is counted. */
	bool alone = !pthread_mutex_trylock(&printing);

	if (alone && !strcmp(last_printed, last_reason)) {
		repeats++;
		pthread_mutex_unlock(&printing);
		return;
	}
	if (alone)
		print_repeats();
	if (error && alone && !introduced) {
		introduced = true;
		fputs("softverbs: (refused calls are explained; libraries try out addresses and features, and go on without "
		      "them, so not each of these is why a program fails)\n",
		      stderr);
	}
	if (!error)
		fprintf(stderr, "softverbs: %s\n", last_reason);
	else if (name)
		fprintf(stderr, "softverbs: %s (%s)\n", last_reason, name);
	else
		fprintf(stderr, "softverbs: %s (errno %d)\n", last_reason, error);
	if (alone) {
		strcpy(last_printed, last_reason);
		pthread_mutex_unlock(&printing);
	}
}

int sv_refuse(int error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(last_reason, sizeof(last_reason), format, arguments);
	va_end(arguments);
	/* ENODATA: an empty entry of a table, which programs look for. */
	if (error != ENODATA && is_on("SOFTVERBS_EXPLAIN"))
		print_reason(error);
	errno = error;
	return error;
}

/* -- the device that is not there */

void sv_tell_unreachable(int error)
{
	static atomic_bool told;
	const char *path = getenv("SOFTVERBS_SOCKET");
	const char *wanted = getenv("SOFTVERBS_EXPLAIN");

	if (!path || !*path || (wanted && !strcmp(wanted, "0")) || atomic_exchange(&told, true))
		return;
	if (error == ENOENT || error == ECONNREFUSED)
		fprintf(stderr,
			"softverbs: the device of SOFTVERBS_SOCKET=%s has ended, so there is none; `softverbs run` ends it "
			"with the program that it has started: for one that goes on in the background use `softverbs serve`\n",
			path);
	else
		fprintf(stderr, "softverbs: the device of SOFTVERBS_SOCKET=%s cannot be reached: %s\n", path,
			*last_reason ? last_reason : strerror(error));
}

/* -- variables that are the device's */

/* FNV-1a of a text: the device tells the same of its own variables. */
static uint64_t digest(const char *text)
{
	uint64_t value = 0xCBF29CE484222325;

	for (; *text; text++)
		value = (value ^ (uint8_t)*text) * 0x100000001B3;
	return value;
}

static void compare(const char *name, uint64_t of_device)
{
	const char *value = getenv(name);

	if (value && *value && digest(value) != of_device)
		fprintf(stderr,
			"softverbs: %s=%s is not what the device was started with, and is ignored: it is for `softverbs run` "
			"or `softverbs serve`, not for the program\n",
			name, value);
}

/* -- what was loaded */

/* The path of the library that a function is in. */
struct search {
	uintptr_t address;
	const char *path;
};

static int look_for_address(struct dl_phdr_info *info, size_t size, void *argument)
{
	struct search *search = argument;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];

		if (part->p_type == PT_LOAD && search->address - info->dlpi_addr - part->p_vaddr < part->p_memsz) {
			search->path = info->dlpi_name;
			return 1;
		}
	}
	return 0;
}

/* A libibverbs that is not this one. */
static int look_for_another(struct dl_phdr_info *info, size_t size, void *argument)
{
	struct search *search = argument;
	struct search here = {.address = (uintptr_t)look_for_address};
	const char *slash = strrchr(info->dlpi_name, '/');
	const char *base = slash ? slash + 1 : info->dlpi_name;

	if (strncmp(base, "libibverbs", strlen("libibverbs")) != 0 || look_for_address(info, size, &here))
		return 0;
	search->path = info->dlpi_name;
	return 1;
}

static const char *another(void)
{
	struct search search = {0};

	dl_iterate_phdr(look_for_another, &search);
	return search.path;
}

static atomic_bool asked; /* for a device */

void sv_introduce(const struct sv_hello_response *hello)
{
	struct search here = {.address = (uintptr_t)look_for_address};
	const char *other;

	if (atomic_exchange(&asked, true))
		return;
	compare("SOFTVERBS_ADDRESS", hello->digest_address);
	compare("SOFTVERBS_OPTIONS", hello->digest_options);
	compare("SOFTVERBS_FAULTS", hello->digest_faults);
	compare("SOFTVERBS_PCAP", hello->digest_pcap);
	if (!is_on("SOFTVERBS_VERBOSE"))
		return;
	dl_iterate_phdr(look_for_address, &here);
	other = another();
	fprintf(stderr, "softverbs: %s (process %d) uses %s, device %.63s%s%s%s\n", program_invocation_short_name,
		(int)getpid(), here.path ? here.path : "our libibverbs", hello->name, other ? "; also loaded: " : "",
		other ? other : "", other ? ", which it may use instead" : "");
}

/* At the end of a process. Nothing is done at its begin: the library is preloaded into every program of a shell. */
__attribute__((destructor)) static void say_the_rest(void)
{
	const char *other;

	print_repeats();
	if (atomic_load(&asked) || !is_on("SOFTVERBS_VERBOSE"))
		return;
	other = another();
	if (other)
		fprintf(stderr, "softverbs: %s (process %d) has loaded %s and has not asked ours for a device\n",
			program_invocation_short_name, (int)getpid(), other);
}
