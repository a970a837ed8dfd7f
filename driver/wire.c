// SPDX-License-Identifier: MIT
/* The connection to the device: a socket for commands, descriptors that come with their answers, and what happens when
 * the device goes, or when the program forks.
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#include "driver.h"

#define MAX_FDS 4
#define FIRST_PLACES 64 /* for objects, a power of two */
#define LOOK_EVERY 20 /* ms between two looks at the socket of a device that does not answer */

static pthread_mutex_t connections_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sv_connection *connections;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* -- fork: what the parent holds is the parent's */

static void lock_connections(void)
{
	pthread_mutex_lock(&connections_lock);
}

static void unlock_connections(void)
{
	pthread_mutex_unlock(&connections_lock);
}

/* In a child: its copies of the connections are closed, so that the device sees the end of the parent, and dead. */
static void after_fork(void)
{
	for (struct sv_connection *each = connections; each; each = each->next) {
		atomic_store(&each->dead, true);
		each->forked = true;
		if (each->socket >= 0)
			close(each->socket);
		if (each->doorbell >= 0)
			close(each->doorbell);
		if (each->async_fd >= 0)
			close(each->async_fd);
		each->socket = each->doorbell = each->async_fd = -1;
		pthread_mutex_init(&each->lock, NULL);
		pthread_mutex_init(&each->entries_lock, NULL);
	}
	unlock_connections(); /* the thread that forked has locked it */
}

static void watch_forks(void)
{
	pthread_atfork(lock_connections, unlock_connections, after_fork);
}

/* -- life and death */

void sv_lost(struct sv_connection *connection)
{
	atomic_store(&connection->dead, true);
}

bool sv_is_lost(struct sv_connection *connection)
{
	struct pollfd look = {.fd = connection->socket, .events = POLLRDHUP};
	struct timespec now;
	int cancelling;
	long ms;

	if (atomic_load_explicit(&connection->dead, memory_order_relaxed))
		return true;
	if (atomic_load_explicit((_Atomic uint32_t *)(connection->control + SV_CONTROL_GONE), memory_order_relaxed))
		return true;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	ms = now.tv_sec * 1000 + now.tv_nsec / 1000000;
	if (ms - atomic_load_explicit(&connection->looked, memory_order_relaxed) < LOOK_EVERY)
		return false;
	atomic_store_explicit(&connection->looked, ms, memory_order_relaxed);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelling); /* posting and polling are no points of cancellation */
	if (poll(&look, 1, 0) > 0 && look.revents & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL))
		sv_lost(connection);
	pthread_setcancelstate(cancelling, NULL);
	return atomic_load(&connection->dead);
}

uint8_t *sv_map(int fd, size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (memory == MAP_FAILED)
		sv_refuse(ENOMEM, "the device's memory of %zu bytes cannot be mapped: %s", size, strerror(errno));
	close(fd);
	return memory == MAP_FAILED ? NULL : memory;
}

/* -- commands */

/* Sends a request, with a descriptor where `fd` is one. */
static int send_request(struct sv_connection *connection, enum sv_command command, const void *request, size_t size,
			int fd)
{
	struct sv_request head = {.size = sizeof(head) + size, .command = command, .sequence = ++connection->sequence};
	struct iovec parts[2] = {{&head, sizeof(head)}, {(void *)request, size}};
	char control[CMSG_SPACE(sizeof(int))] = {0};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
	ssize_t sent;

	if (fd >= 0) {
		struct cmsghdr *passed;

		message.msg_control = control;
		message.msg_controllen = sizeof(control);
		passed = CMSG_FIRSTHDR(&message);
		passed->cmsg_level = SOL_SOCKET;
		passed->cmsg_type = SCM_RIGHTS;
		passed->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(passed), &fd, sizeof(int));
	}
	do
		sent = sendmsg(connection->socket, &message, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? errno : 0;
}

/* Takes the descriptors out of a message; those that are not expected are closed. How many were expected and came. */
static int take_fds(struct msghdr *message, int *fds, int count)
{
	int taken = 0;

	for (struct cmsghdr *each = CMSG_FIRSTHDR(message); each; each = CMSG_NXTHDR(message, each)) {
		size_t passed;

		if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS)
			continue;
		passed = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < passed; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(each) + i * sizeof(int), sizeof(int));
			if (taken < count)
				fds[taken++] = fd;
			else
				close(fd);
		}
	}
	return taken;
}

/* Receives one answer into `buffer`; its size, 0 at the end, or -1. */
static ssize_t receive_answer(int socket, char *buffer, size_t size, int *fds, int count, int *came)
{
	struct iovec part = {buffer, size};
	char control[CMSG_SPACE(sizeof(int) * MAX_FDS)];
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	ssize_t received;

	do
		received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
	while (received < 0 && errno == EINTR);
	*came = received > 0 ? take_fds(&message, fds, count) : 0;
	return received;
}

static void close_fds(int *fds, int count)
{
	for (int i = 0; i < count; i++)
		close(fds[i]);
}

/* Holds places for descriptors that will come: 0, or the errno where the program can have no more, so that what is asked
 * for is not made and then left behind.
 */
static int hold_places(int *fds, int count)
{
	for (int i = 0; i < count; i++) {
		fds[i] = eventfd(0, EFD_CLOEXEC);
		if (fds[i] < 0) {
			int error = errno;

			close_fds(fds, i);
			return sv_refuse(error, "%d descriptors are needed, and cannot be had: %s", count, strerror(error));
		}
	}
	return 0;
}

/* The errno of an answer. `response` is filled in where that is 0. */
static int read_answer(const char *buffer, size_t received, uint64_t sequence, void *response, size_t response_size)
{
	struct sv_response head;
	size_t rest = received - sizeof(head);

	if (received < sizeof(head))
		return -1;
	memcpy(&head, buffer, sizeof(head));
	if (head.sequence != sequence)
		return -1;
	if (head.error) {
		sv_refuse(head.error, "%.*s", (int)(rest > SV_TEXT_SIZE ? SV_TEXT_SIZE : rest), buffer + sizeof(head));
		return head.error;
	}
	if (rest < response_size)
		return -1;
	if (response_size)
		memcpy(response, buffer + sizeof(head), response_size);
	return 0;
}

int sv_call_fds(struct sv_connection *connection, enum sv_command command, const void *request, size_t request_size,
		void *response, size_t response_size, int *fds, int count, int sent_fd)
{
	char buffer[SV_MESSAGE_SIZE];
	ssize_t received = 0;
	int came = 0;
	int cancelling;
	int error;

	if (connection->forked)
		return sv_refuse(EIO, "what was opened before fork(2) is the parent's: open the device in this process");
	if (atomic_load(&connection->dead))
		return sv_refuse(EIO, "the device is gone");
	error = hold_places(fds, count);
	if (error)
		return error;
	/* A thread that is cancelled here would leave the lock behind, and an answer that is taken for another one. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelling);
	pthread_mutex_lock(&connection->lock);
	error = send_request(connection, command, request, request_size, sent_fd);
	close_fds(fds, count);
	if (!error)
		received = receive_answer(connection->socket, buffer, sizeof(buffer), fds, count, &came);
	if (error || received <= 0)
		error = -1;
	else
		error = read_answer(buffer, received, connection->sequence, response, response_size);
	pthread_mutex_unlock(&connection->lock);
	pthread_setcancelstate(cancelling, NULL);
	if (error < 0) {
		close_fds(fds, came);
		sv_lost(connection);
		return sv_refuse(EIO, "the device is gone");
	}
	if (!error && came < count)
		error = sv_refuse(EMFILE, "%d descriptors came with the answer, %d are needed", came, count);
	if (error)
		close_fds(fds, came);
	return error;
}

int sv_call(struct sv_connection *connection, enum sv_command command, const void *request, size_t request_size,
	    void *response, size_t response_size)
{
	return sv_call_fds(connection, command, request, request_size, response, response_size, NULL, 0, -1);
}

/* -- opening and closing */

/* A socket that is connected to the device, or -1 with errno. */
static int open_socket(void)
{
	const char *path = getenv("SOFTVERBS_SOCKET");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd;

	if (!path || !*path) {
		errno = ENODEV;
		return -1;
	}
	if (strlen(path) >= sizeof(address.sun_path)) {
		sv_refuse(ENAMETOOLONG, "SOFTVERBS_SOCKET is too long: %s", path);
		return -1;
	}
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		int error = errno;

		close(fd);
		sv_refuse(error, "no device answers at SOFTVERBS_SOCKET=%s: %s", path, strerror(error));
		fd = -1;
	}
	return fd;
}

/* The device reads and writes this program's memory. Where it is not its ancestor the kernel wants to be told (yama).
 * A device of root for programs of other users gets a descriptor of the memory, which is returned; nobody else does,
 * since who has it can do anything with this program. Who the device is the kernel says, not the device.
 */
static int let_in(int socket)
{
	struct ucred device;
	socklen_t size = sizeof(device);

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &device, &size) < 0)
		return -1;
	if (device.pid > 0)
		prctl(PR_SET_PTRACER, (unsigned long)device.pid, 0, 0, 0);
	return device.uid == 0 && geteuid() != 0 ? open("/proc/self/mem", O_RDWR | O_CLOEXEC) : -1;
}

/* What the device passes to a context: its control page, the doorbell, the descriptor of asynchronous events. */
static int greet(struct sv_connection *connection, uint32_t purpose)
{
	struct sv_hello_request request = {.abi = SV_ABI_VERSION, .purpose = purpose};
	int count = purpose == SV_PURPOSE_CONTEXT ? 3 : 0;
	int memory = -1;
	int fds[3];
	int error;

	if (count) {
		connection->guard = sv_make_guard();
		if (!connection->guard)
			return errno;
		request.guard = (uintptr_t)connection->guard;
		request.secret = sv_read_guard(connection->guard);
		memory = let_in(connection->socket);
	}
	error = sv_call_fds(connection, SV_HELLO, &request, sizeof(request), &connection->hello,
			    sizeof(connection->hello), fds, count, memory);
	if (memory >= 0)
		close(memory);
	if (error || !count)
		return error;
	connection->doorbell = fds[1];
	connection->async_fd = fds[2];
	fcntl(connection->async_fd, F_SETFL, fcntl(connection->async_fd, F_GETFL) & ~O_NONBLOCK);
	connection->control = sv_map(fds[0], SV_CONTROL_SIZE);
	if (!connection->control)
		return errno;
	connection->polled = mmap(NULL, SV_SEND_QUEUES * sizeof(struct sv_polled), PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); /* a page of it for 64 queues */
	if (connection->polled == MAP_FAILED) {
		connection->polled = NULL;
		return sv_refuse(ENOMEM, "no memory for the indices of send queues: %s", strerror(errno));
	}
	return 0;
}

struct sv_connection *sv_connect(uint32_t purpose)
{
	struct sv_connection *self;
	int fd = open_socket();
	int error;

	if (fd < 0)
		return NULL;
	self = calloc(1, sizeof(*self));
	if (self)
		self->entries = calloc(FIRST_PLACES, sizeof(*self->entries));
	if (!self || !self->entries) {
		free(self);
		close(fd);
		errno = ENOMEM;
		return NULL;
	}
	self->places = FIRST_PLACES;
	self->socket = fd;
	self->doorbell = self->async_fd = -1;
	self->references = 1;
	pthread_mutex_init(&self->lock, NULL);
	pthread_mutex_init(&self->entries_lock, NULL);
	pthread_once(&once, watch_forks);
	lock_connections();
	self->next = connections;
	connections = self;
	unlock_connections();
	error = greet(self, purpose);
	if (error) {
		sv_disconnect(self);
		errno = error;
		return NULL;
	}
	sv_introduce(&self->hello);
	return self;
}

/* The connection that a socket belongs to, once more; NULL where it is none of this process's. */
struct sv_connection *sv_share(int socket)
{
	struct sv_connection *found;
	struct stat wanted, have;

	if (fstat(socket, &wanted) < 0)
		return NULL;
	lock_connections();
	for (found = connections; found; found = found->next)
		if (!fstat(found->socket, &have) && have.st_dev == wanted.st_dev && have.st_ino == wanted.st_ino)
			break;
	if (found)
		found->references++;
	unlock_connections();
	return found;
}

/* A child of fork(2) asks about the device, and takes device memory, by a connection of its own, which it opens now. */
struct sv_connection *sv_own(struct sv_connection *connection)
{
	struct sv_connection *heir;

	if (!connection->forked)
		return connection;
	pthread_mutex_lock(&connection->lock);
	if (!connection->heir)
		connection->heir = sv_connect(SV_PURPOSE_CONTEXT);
	heir = connection->heir;
	pthread_mutex_unlock(&connection->lock);
	return heir ? sv_own(heir) : connection; /* the heir of a parent that was forked itself is not ours either */
}

void sv_disconnect(struct sv_connection *connection)
{
	struct sv_connection **at;

	lock_connections();
	if (--connection->references) {
		unlock_connections();
		return;
	}
	for (at = &connections; *at != connection; at = &(*at)->next)
		;
	*at = connection->next;
	unlock_connections();
	if (connection->heir)
		sv_disconnect(connection->heir);
	if (connection->socket >= 0)
		close(connection->socket);
	if (connection->doorbell >= 0)
		close(connection->doorbell);
	if (connection->async_fd >= 0)
		close(connection->async_fd);
	if (connection->control)
		munmap(connection->control, SV_CONTROL_SIZE);
	if (connection->polled)
		munmap(connection->polled, SV_SEND_QUEUES * sizeof(struct sv_polled));
	if (!connection->forked) /* a child does not have it */
		sv_free_guard(connection->guard);
	pthread_mutex_destroy(&connection->lock);
	pthread_mutex_destroy(&connection->entries_lock);
	free(connection->entries);
	free(connection);
}

/* -- objects that events name */

static struct sv_entry **place_of(struct sv_connection *connection, uint64_t handle)
{
	return &connection->entries[handle & (connection->places - 1)];
}

/* Makes the table larger where it is full, so that finding an object takes as long however many there are. Where there is
 * no memory it stays as it is.
 */
static void widen(struct sv_connection *connection)
{
	struct sv_entry **old = connection->entries;
	size_t count = connection->places;
	struct sv_entry **wider;

	if (connection->entered < count)
		return;
	wider = calloc(count * 2, sizeof(*wider));
	if (!wider)
		return;
	connection->entries = wider;
	connection->places = count * 2;
	for (size_t i = 0; i < count; i++)
		while (old[i]) {
			struct sv_entry *each = old[i];
			struct sv_entry **place = place_of(connection, each->handle);

			old[i] = each->next;
			each->next = *place;
			*place = each;
		}
	free(old);
}

void sv_enter(struct sv_connection *connection, struct sv_entry *entry, enum sv_kind kind, uint32_t handle)
{
	struct sv_entry **place;

	entry->kind = kind;
	entry->handle = handle;
	pthread_mutex_lock(&connection->entries_lock);
	widen(connection);
	place = place_of(connection, handle);
	entry->next = *place;
	*place = entry;
	connection->entered++;
	pthread_mutex_unlock(&connection->entries_lock);
}

void sv_remove(struct sv_connection *connection, struct sv_entry *entry)
{
	struct sv_entry **at;

	pthread_mutex_lock(&connection->entries_lock);
	at = place_of(connection, entry->handle);
	while (*at && *at != entry)
		at = &(*at)->next;
	if (*at) {
		*at = entry->next;
		connection->entered--;
	}
	pthread_mutex_unlock(&connection->entries_lock);
}

struct sv_entry *sv_find(struct sv_connection *connection, enum sv_kind kind, uint64_t handle)
{
	struct sv_entry *each = *place_of(connection, handle);

	while (each && (each->kind != kind || each->handle != handle))
		each = each->next;
	return each;
}
