// SPDX-License-Identifier: MIT
/* What is made and goes again, or changes its size, leaves nothing behind: no mapping, no descriptor, no memory, neither
 * here nor in the device, which is this program's parent (softverbs run).
 */
#include "pair.h"
#include "softverbs_comp_cntr.h"

#include <dirent.h>

#define WARM 40
#define ROUNDS 300
#define SPARE 8	       /* mappings, as of the C library's and Python's heaps */
#define GROWTH 1000 /* KiB: less than a page for each round */

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *resized;
static struct ibv_srq *resized_srq;
static char memory[4096];

struct use {
	long mappings;
	long descriptors;
	long resident; /* KiB */
};

static struct use use_of(int pid)
{
	struct use use = {0};
	struct ibv_port_attr port;
	char path[64];
	FILE *file;
	DIR *folder;
	int c;

	/* The device closes what it has passed on behind its answer: by the next answer it has. */
	CHECK(!ibv_query_port(context, 1, &port), "the port");
	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	file = fopen(path, "r");
	CHECK(file, "%s", path);
	while ((c = getc(file)) != EOF)
		use.mappings += c == '\n';
	fclose(file);
	snprintf(path, sizeof(path), "/proc/%d/statm", pid);
	file = fopen(path, "r");
	CHECK(file && fscanf(file, "%*d %ld", &use.resident) == 1, "%s", path);
	fclose(file);
	use.resident *= sysconf(_SC_PAGESIZE) / 1024;
	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	folder = opendir(path);
	CHECK(folder, "%s", path);
	while (readdir(folder))
		use.descriptors++;
	closedir(folder);
	return use;
}

/* -- what is done in a round */

static void resize_cq(int round)
{
	errno = ibv_resize_cq(resized, 1000 + round % 2 * 5000);
	CHECK(!errno, "resizing a CQ");
}

static void resize_srq(int round)
{
	struct ibv_srq_attr attr = {.max_wr = 1000 + round % 2 * 3000};

	errno = ibv_modify_srq(resized_srq, &attr, IBV_SRQ_MAX_WR);
	CHECK(!errno, "resizing an SRQ");
}

static void make_queues(int round)
{
	struct ibv_comp_channel *own = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 100 + round % 7, NULL, own, 0);
	struct ibv_srq_init_attr srq_init = {.attr = {10, 1, 0}};
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_qp_init_attr init = {.cap = {10, 0, 1, 1, 0}, .qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .srq = srq};
	struct side side = {.qp = own && cq && srq ? ibv_create_qp(pd, &init) : NULL};

	CHECK(side.qp, "queues");
	to_init(&side);
	to_state(&side, IBV_QPS_ERR);
	CHECK(!ibv_destroy_qp(side.qp) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(cq), "queues are not destroyed");
	CHECK(!ibv_destroy_comp_channel(own), "a channel is not destroyed");
}

static void make_memory(int round)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 1 + round, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_alloc_dm_attr attr = {.length = 4096};
	struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);

	CHECK(mr && dm && mw, "memory");
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 100, 0), "registering anew");
	CHECK(!ibv_dereg_mr(mr) && !ibv_free_dm(dm) && !ibv_dealloc_mw(mw), "memory is not freed");
}

static void make_counter(int round)
{
	struct ibv_comp_cntr_init_attr attr = {0};
	struct ibv_comp_cntr *counter = ibv_create_comp_cntr(context, &attr);

	CHECK(counter && !ibv_set_comp_cntr(counter, round) && !ibv_destroy_comp_cntr(counter), "a counter");
}

static void open_again(int round)
{
	struct ibv_context *other = open_first();
	struct ibv_pd *of_other = ibv_alloc_pd(other);

	(void)round;
	CHECK(of_other && !ibv_dealloc_pd(of_other) && !ibv_close_device(other), "another context");
}

int main(void)
{
	static void (*const works[])(int) = {resize_cq, resize_srq, make_queues, make_memory, make_counter, open_again};
	static const char *const names[] = {"resized CQ", "resized SRQ", "queues", "memory", "counter", "context"};
	struct ibv_srq_init_attr init = {.attr = {1000, 1, 0}};

	context = open_first();
	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	resized = ibv_create_cq(context, 1000, NULL, channel, 0);
	resized_srq = ibv_create_srq(pd, &init);
	CHECK(pd && resized && resized_srq, "what is resized");
	for (size_t i = 0; i < sizeof(works) / sizeof(*works); i++) {
		int pids[2] = {getpid(), getppid()};
		struct use before[2];

		for (int round = 0; round < WARM; round++)
			works[i](round);
		for (int side = 0; side < 2; side++)
			before[side] = use_of(pids[side]);
		for (int round = 0; round < ROUNDS; round++)
			works[i](round);
		for (int side = 0; side < 2; side++) {
			struct use use = use_of(pids[side]);
			const char *whose = side ? "the device" : "the program";

			CHECK(use.descriptors <= before[side].descriptors, "%s: %s: %ld descriptors more", names[i], whose,
			      use.descriptors - before[side].descriptors);
			CHECK(use.mappings <= before[side].mappings + SPARE, "%s: %s: %ld mappings more", names[i], whose,
			      use.mappings - before[side].mappings);
			CHECK(use.resident <= before[side].resident + GROWTH, "%s: %s: %ld KiB more", names[i], whose,
			      use.resident - before[side].resident);
		}
		puts(names[i]);
	}
	CHECK(!ibv_destroy_srq(resized_srq) && !ibv_destroy_cq(resized), "not destroyed");
	CHECK(!ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "not closed");
	puts("done");
	return 0;
}
