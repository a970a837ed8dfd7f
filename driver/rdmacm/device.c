// SPDX-License-Identifier: MIT
/* The device as the connection manager has it: one context and one protection domain for all identifiers. */
#include "rdmacm.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibv_context *home;
static struct ibv_pd *home_pd;

/* In a child of fork(2): a lock that another thread of the parent held is nobody's. */
static void after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
	sv_cm_reset_ids_lock();
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, after_fork);
}

/* Opens the first device, which is the only one. */
static struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	if (list && list[0])
		context = ibv_open_device(list[0]);
	if (list)
		ibv_free_device_list(list);
	if (!context)
		sv_refuse(ENODEV, "there is no device for the connection manager");
	return context;
}

struct ibv_context *sv_cm_home(void)
{
	struct ibv_context *found;

	pthread_mutex_lock(&lock);
	if (!home || sv_of(home)->forked) { /* what the parent has opened is the parent's */
		home = open_device();
		home_pd = NULL;
	}
	found = home;
	pthread_mutex_unlock(&lock);
	return found;
}

struct ibv_pd *sv_cm_pd(void)
{
	struct ibv_context *context = sv_cm_home();
	struct ibv_pd *found;

	if (!context)
		return NULL;
	pthread_mutex_lock(&lock);
	if (!home_pd)
		home_pd = ibv_alloc_pd(context);
	found = home_pd;
	pthread_mutex_unlock(&lock);
	return found;
}

SV_EXPORT struct ibv_context **rdma_get_devices(int *num_devices)
{
	struct ibv_context *context = sv_cm_home();
	struct ibv_context **list = context ? calloc(2, sizeof(*list)) : NULL;

	if (num_devices)
		*num_devices = !!list;
	if (list)
		list[0] = context;
	return list;
}

SV_EXPORT void rdma_free_devices(struct ibv_context **list)
{
	free(list);
}
