// SPDX-License-Identifier: MIT
/* efadv_create_comp_cntr(3): completion counters whose counts are kept in the program's own memory, where they can be watched
 * without a call. What each refusal gives, what the memory says when, and that the rest of libefa is refused.
 *
 * Each line that it prints is one statement. The last is "done", and the exit status 0.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "counting.h"
#include "softverbs.h"
#include "softverbs_efadv.h"

#define COMP EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM
#define ERR EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM
#define PAGE 4096
#define UNTOUCHED 0xa5a5a5a5a5a5a5a5

/* Counts of the program's, with what must not be touched around them. */
struct words {
	_Atomic uint64_t before, value, between, errors, after;
};

static void fill(struct words *words)
{
	words->before = words->value = words->between = words->errors = words->after = UNTOUCHED;
}

static uint8_t *page(int rights)
{
	uint8_t *memory = mmap(NULL, PAGE, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED, "mmap");
	return memory;
}

static struct efadv_comp_cntr_init_attr where(uint32_t flags, const volatile void *value, const volatile void *errors)
{
	struct efadv_comp_cntr_init_attr attr = {.flags = flags};

	attr.comp_cntr_ext_mem.ptr = (uint8_t *)value;
	attr.err_cntr_ext_mem.ptr = (uint8_t *)errors;
	return attr;
}

static struct ibv_comp_cntr *make_at(struct ibv_context *context, enum ibv_comp_cntr_type type, uint32_t flags,
				     const volatile void *value, const volatile void *errors)
{
	struct ibv_comp_cntr_init_attr attr = {.type = type};
	struct efadv_comp_cntr_init_attr efa_attr = where(flags, value, errors);
	struct ibv_comp_cntr *counter = efadv_create_comp_cntr(context, &attr, &efa_attr, sizeof(efa_attr));

	CHECK(counter, "efadv_create_comp_cntr: %s", softverbs_last_reason());
	return counter;
}

/* Waits until both words of memory are as they have to be. */
static void says(const char *what, const struct words *words, uint64_t value, uint64_t errors)
{
	time_t start = time(NULL);

	while ((words->value != value || words->errors != errors) && time(NULL) - start < 10)
		usleep(1000);
	CHECK(words->value == value && words->errors == errors, "%s: %#llx and %#llx, not %#llx and %#llx", what,
	      (unsigned long long)words->value, (unsigned long long)words->errors, (unsigned long long)value,
	      (unsigned long long)errors);
	CHECK(words->before == UNTOUCHED && words->between == UNTOUCHED && words->after == UNTOUCHED,
	      "%s: memory beside the counts was written", what);
	printf("%s: the memory says %#llx and %#llx\n", what, (unsigned long long)value, (unsigned long long)errors);
}

/* -- refusals */

/* The errno of efadv_create_comp_cntr, which has to fail. */
static void refused(const char *what, struct ibv_context *context, struct ibv_comp_cntr_init_attr attr,
		    const void *efa_attr, uint32_t inlen, int wanted)
{
	struct ibv_comp_cntr *made;

	errno = 0;
	made = efadv_create_comp_cntr(context, &attr, (struct efadv_comp_cntr_init_attr *)efa_attr, inlen);
	expect(what, made ? 0 : errno, wanted);
	CHECK(*softverbs_last_reason(), "%s: no reason is given", what);
}

static void refused_at(const char *what, struct ibv_context *context, uint64_t address, int wanted)
{
	static uint64_t good;
	struct efadv_comp_cntr_init_attr efa_attr = where(COMP | ERR, (void *)(uintptr_t)address, &good);
	struct ibv_comp_cntr_init_attr attr = {0};

	refused(what, context, attr, &efa_attr, sizeof(efa_attr), wanted);
	efa_attr = where(COMP | ERR, &good, (void *)(uintptr_t)address);
	refused("the same for the error count", context, attr, &efa_attr, sizeof(efa_attr), wanted);
}

static void attributes(struct ibv_context *context)
{
	static uint64_t words[2];
	struct {
		struct efadv_comp_cntr_init_attr known;
		uint64_t unknown;
	} longer = {where(COMP, words, NULL), 0};
	const struct ibv_comp_cntr_init_attr attr = {0}, mask = {.comp_mask = 1}, flags = {.flags = 1},
					     type = {.type = (enum ibv_comp_cntr_type)2};
	struct efadv_comp_cntr_init_attr efa_attr = where(COMP | ERR, words, words + 1);
	const uint32_t inlen = sizeof(efa_attr);
	struct ibv_comp_cntr_init_attr plain = {0};
	struct ibv_comp_cntr *counter = efadv_create_comp_cntr(context, &plain, &longer.known, sizeof(longer));

	expect("create with a longer structure, zeros behind what is known", counter ? 0 : errno, 0);
	expect("destroy it", ibv_destroy_comp_cntr(counter), 0);
	longer.unknown = 1;
	refused("create with a longer structure, and something there", context, attr, &longer, sizeof(longer), EINVAL);
	refused("create with a shorter structure", context, attr, &efa_attr, inlen - 1, EINVAL);
	refused("create with inlen 0", context, attr, &efa_attr, 0, EINVAL);
	refused("create with comp_mask of ibv_comp_cntr_init_attr", context, mask, &efa_attr, inlen, EINVAL);
	refused("create with its flags", context, flags, &efa_attr, inlen, EINVAL);
	refused("create with an unknown type", context, type, &efa_attr, inlen, EOPNOTSUPP);
	efa_attr.comp_mask = 1;
	refused("create with comp_mask of efadv_comp_cntr_init_attr", context, attr, &efa_attr, inlen, EINVAL);
	efa_attr = where(COMP | ERR | 1 << 2, words, words + 1);
	refused("create with an unknown flag", context, attr, &efa_attr, inlen, EINVAL);
	efa_attr = where(COMP | ERR, words, words + 1);
	efa_attr.comp_cntr_ext_mem.type = EFADV_MEMORY_LOCATION_DMABUF;
	refused("create in a DMA-BUF", context, attr, &efa_attr, inlen, EOPNOTSUPP);
	efa_attr = where(COMP | ERR, words, words + 1);
	efa_attr.err_cntr_ext_mem.type = 2;
	refused("create in memory of an unknown kind", context, attr, &efa_attr, inlen, EOPNOTSUPP);
}

static void addresses(struct ibv_context *context)
{
	uint8_t *gone = page(PROT_READ | PROT_WRITE);
	uint8_t *fixed = page(PROT_READ);
	uint8_t *nothing = page(PROT_NONE);

	munmap(gone, PAGE);
	refused_at("create at no address", context, 0, EINVAL);
	refused_at("create at an address that is no multiple of 8", context, (uintptr_t)fixed + 4, EINVAL);
	refused_at("create where nothing is mapped", context, (uintptr_t)gone, EFAULT);
	refused_at("create in memory that is read-only", context, (uintptr_t)fixed, EFAULT);
	refused_at("create in memory that is not accessible", context, (uintptr_t)nothing, EFAULT);
	refused_at("create in the kernel's half", context, 0xffff888000000000, EFAULT);
	refused_at("create at the last word", context, UINT64_MAX - 7, EFAULT);
	munmap(fixed, PAGE);
	munmap(nothing, PAGE);
}

/* What was refused has left nothing: as many counters as the device has can still be made. */
static void capacity(struct ibv_context *context)
{
	struct ibv_comp_cntr_caps caps;
	struct ibv_comp_cntr **all;
	uint64_t *words;

	CHECK(!ibv_query_comp_cntr_caps(context, &caps), "ibv_query_comp_cntr_caps");
	all = calloc(caps.max_counters, sizeof(*all));
	words = calloc(caps.max_counters + 1, sizeof(*words));
	for (uint32_t i = 0; i < caps.max_counters; i++)
		all[i] = make_at(context, IBV_COMP_CNTR_TYPE_WRS, COMP, words + i, NULL);
	{
		struct efadv_comp_cntr_init_attr efa_attr = where(COMP, words + caps.max_counters, NULL);
		struct ibv_comp_cntr_init_attr attr = {0};

		refused("create one more than max_counters", context, attr, &efa_attr, sizeof(efa_attr), ENOMEM);
	}
	for (uint32_t i = 0; i < caps.max_counters; i++)
		CHECK(!ibv_destroy_comp_cntr(all[i]), "ibv_destroy_comp_cntr");
	free(words);
	free(all);
}

/* -- counts that the program sets */

static void flags(struct ibv_context *context)
{
	struct ibv_comp_cntr *counter;
	struct words words;

	fill(&words);
	counter = make_at(context, IBV_COMP_CNTR_TYPE_WRS, 0, &words.value, &words.errors);
	expect("set a counter without external memory", ibv_set_comp_cntr(counter, 1), 0);
	says("flags 0", &words, UNTOUCHED, UNTOUCHED);
	counts("the counter", counter, 1, 0);
	CHECK(!ibv_destroy_comp_cntr(counter), "ibv_destroy_comp_cntr");

	counter = make_at(context, IBV_COMP_CNTR_TYPE_WRS, COMP, &words.value, &words.errors);
	says("created, the completion count only", &words, 0, UNTOUCHED);
	CHECK(!ibv_set_comp_cntr(counter, 2) && !ibv_set_err_comp_cntr(counter, 3), "set");
	says("set to 2 and 3", &words, 2, UNTOUCHED);
	counts("the counter", counter, 2, 3);
	CHECK(!ibv_destroy_comp_cntr(counter), "ibv_destroy_comp_cntr");

	counter = make_at(context, IBV_COMP_CNTR_TYPE_WRS, ERR, &words.value, &words.errors);
	says("created, the error count only", &words, 2, 0);
	CHECK(!ibv_set_comp_cntr(counter, 4) && !ibv_set_err_comp_cntr(counter, 5), "set");
	says("set to 4 and 5", &words, 2, 5);
	counts("the counter", counter, 4, 5);
	CHECK(!ibv_destroy_comp_cntr(counter), "ibv_destroy_comp_cntr");
}

static void values(struct ibv_context *context)
{
	struct ibv_comp_cntr_caps caps;
	struct ibv_comp_cntr *counter;
	struct words words;

	CHECK(!ibv_query_comp_cntr_caps(context, &caps), "ibv_query_comp_cntr_caps");
	fill(&words);
	counter = make_at(context, IBV_COMP_CNTR_TYPE_WRS, COMP | ERR, &words.value, &words.errors);
	says("created, both counts", &words, 0, 0);
	expect("set to 40", ibv_set_comp_cntr(counter, 40), 0);
	expect("increment by 2", ibv_inc_comp_cntr(counter, 2), 0);
	expect("set errors to 6", ibv_set_err_comp_cntr(counter, 6), 0);
	expect("increment errors by 1", ibv_inc_err_comp_cntr(counter, 1), 0);
	says("after that", &words, 42, 7);
	counts("reading it", counter, 42, 7);
	words.value = 99; /* which the manual forbids; a device stores what it is told to */
	expect("set to 42 again", ibv_set_comp_cntr(counter, 42), 0);
	says("which is stored though it is the same", &words, 42, 7);
	CHECK(!ibv_set_comp_cntr(counter, caps.max_value) && !ibv_set_err_comp_cntr(counter, caps.max_value), "set");
	says("set to max_value", &words, caps.max_value, caps.max_value);
	CHECK(!ibv_inc_comp_cntr(counter, 3) && !ibv_inc_err_comp_cntr(counter, 1), "inc");
	says("incremented by 3 and 1: max_value is followed by 0", &words, 2, 0);
	if (caps.max_value != UINT64_MAX) {
		expect("set beyond max_value", ibv_set_comp_cntr(counter, caps.max_value + 1), EINVAL);
		says("which changes nothing", &words, 2, 0);
	}
	expect("destroy", ibv_destroy_comp_cntr(counter), 0);
	says("a counter that has gone leaves its counts", &words, 2, 0);
}

/* -- counts that traffic makes */

static void traffic(void)
{
	struct pair *pair = make_pair(NULL);
	struct words wrs, bytes, remote, receives;
	struct ibv_comp_cntr *c[4];
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	fill(&wrs);
	fill(&bytes);
	fill(&remote);
	fill(&receives);
	c[0] = make_at(pair->context, IBV_COMP_CNTR_TYPE_WRS, COMP | ERR, &wrs.value, &wrs.errors);
	c[1] = make_at(pair->context, IBV_COMP_CNTR_TYPE_BYTES, COMP | ERR, &bytes.value, &bytes.errors);
	c[2] = make_at(pair->context, IBV_COMP_CNTR_TYPE_WRS, COMP | ERR, &remote.value, &remote.errors);
	c[3] = make_at(pair->context, IBV_COMP_CNTR_TYPE_WRS, COMP | ERR, &receives.value, &receives.errors);
	expect("attach to RDMA_WRITE", attach(pair->a.qp, c[0], 0, WRITE), 0);
	expect("attach to SEND, counting bytes", attach(pair->a.qp, c[1], 0, SEND), 0);
	expect("attach to REMOTE_RDMA_WRITE of the peer", attach(pair->b.qp, c[2], 0, REMOTE_WRITE), 0);
	expect("attach to RECV of the peer", attach(pair->b.qp, c[3], 0, RECV), 0);
	expect("attach another to RECV", attach(pair->b.qp, c[0], 0, RECV), EBUSY);
	connect_pair(pair);

	for (int i = 1; i <= 100; i++) {
		CHECK(!post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 64, i), "post_send");
		CHECK(take(&pair->a).status == IBV_WC_SUCCESS, "a WRITE fails");
		CHECK(wrs.value >= (uint64_t)i, "WRITE %d is polled, the memory says %llu", i,
		      (unsigned long long)wrs.value);
	}
	printf("whoever has polled the completion of the n-th WRITE finds n in memory\n");
	says("100 WRITEs", &wrs, 100, 0);
	for (int i = 1; i <= 100; i++) {
		time_t start = time(NULL);

		pair->a.memory[0] = pair->a.memory[4999] = i; /* of several packets */
		CHECK(!post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 5000, i), "post_send");
		while (remote.value < 100U + i)
			CHECK(time(NULL) - start < 20, "the peer's memory says %llu", (unsigned long long)remote.value);
		CHECK(pair->b.memory[0] == i && pair->b.memory[4999] == i, "WRITE %d is counted before its data are there", i);
		CHECK(take(&pair->a).wr_id == (uint64_t)i, "its completion, which frees its slot");
	}
	printf("who watches the memory of REMOTE_RDMA_WRITE finds the data there\n");
	says("100 more", &wrs, 200, 0);
	for (int i = 0; i < 3; i++)
		CHECK(!receive(&pair->b, 4096, i) && !post(&pair->a, &pair->b, IBV_WR_SEND, 0, 100, i), "posting");
	says("3 SENDs of 100 bytes", &bytes, 300, 0);
	says("3 receives", &receives, 3, 0);
	CHECK(!receive(&pair->b, 4096, 4) && !receive(&pair->b, 4096, 5), "post_recv");
	expect("destroy while attached", ibv_destroy_comp_cntr(c[3]), EBUSY);
	CHECK(!ibv_modify_qp(pair->b.qp, &attr, IBV_QP_STATE), "the QP does not go to ERR");
	says("2 receives that are flushed", &receives, 3, 2);
	CHECK(!ibv_modify_qp(pair->a.qp, &attr, IBV_QP_STATE), "the QP does not go to ERR");
	CHECK(!post(&pair->a, &pair->b, IBV_WR_SEND, 0, 100, 1), "post_send");
	says("a SEND that is flushed counts one error, no bytes", &bytes, 300, 1);
	close_side(&pair->a);
	close_side(&pair->b);
	for (int i = 0; i < 4; i++)
		CHECK(!ibv_destroy_comp_cntr(c[i]), "ibv_destroy_comp_cntr");
	CHECK(!ibv_dealloc_pd(pair->pd) && !ibv_close_device(pair->context), "closing");
	free(pair);
	says("a QP and a counter that have gone leave their counts", &receives, 3, 2);
}

/* Memory that goes while it is in use. On EFA its pages stay with the device, and the program sees nothing of them either. */
static void unmapped(void)
{
	struct pair *pair = make_pair(NULL);
	struct words *gone = (struct words *)page(PROT_READ | PROT_WRITE);
	struct words *fixed = (struct words *)page(PROT_READ | PROT_WRITE);
	struct words stays;
	struct ibv_comp_cntr *lost, *other;

	fill(gone);
	fill(fixed);
	fill(&stays);
	lost = make_at(pair->context, IBV_COMP_CNTR_TYPE_WRS, COMP | ERR, &gone->value, &fixed->errors);
	other = make_at(pair->context, IBV_COMP_CNTR_TYPE_WRS, COMP | ERR, &stays.value, &stays.errors);
	CHECK(!attach(pair->a.qp, lost, 0, WRITE) && !attach(pair->b.qp, other, 0, REMOTE_WRITE), "attach");
	connect_pair(pair);
	for (int i = 1; i <= 50; i++) {
		if (i == 20)
			munmap(gone, PAGE);
		CHECK(!post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 64, i), "post_send");
		CHECK(take(&pair->a).status == IBV_WC_SUCCESS, "a WRITE fails");
	}
	counts("the memory of the completion count was unmapped after 19 of 50 WRITEs: reading it", lost, 50, 0);
	CHECK(strstr(softverbs_last_reason(), "completion count cannot be stored"), "no reason: %s",
	      softverbs_last_reason());
	printf("softverbs_last_reason: %s\n", softverbs_last_reason());
	says("another counter", &stays, 50, 0);
	CHECK(mmap(gone, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (void *)gone, "mmap");
	CHECK(!ibv_set_comp_cntr(lost, 7) && !ibv_inc_err_comp_cntr(lost, 2), "set");
	counts("set to 7, 2 errors more", lost, 7, 2);
	CHECK(gone->value == 0 && fixed->errors == 2, "%llu and %llu", (unsigned long long)gone->value,
	      (unsigned long long)fixed->errors);
	printf("what is mapped there now is left alone, and the error count has its memory still: 2\n");
	CHECK(!mprotect(fixed, PAGE, PROT_READ), "mprotect");
	expect("increment errors whose memory is read-only now", ibv_inc_err_comp_cntr(lost, 1), 0);
	counts("reading it", lost, 7, 3);
	CHECK(fixed->errors == 2, "read-only memory was written");
	close_side(&pair->a);
	close_side(&pair->b);
	expect("destroy", ibv_destroy_comp_cntr(lost), 0);
	expect("destroy the other", ibv_destroy_comp_cntr(other), 0);
	CHECK(!ibv_dealloc_pd(pair->pd) && !ibv_close_device(pair->context), "closing");
	munmap(gone, PAGE);
	munmap(fixed, PAGE);
	free(pair);
}

/* -- the rest of libefa */

enum kind { RETURNS_ERRNO, RETURNS_NEGATIVE, RETURNS_POINTER };

/* They do not look at what they are given, so that anything does. */
static void not_efa(struct ibv_context *context)
{
	static const struct {
		const char *name, *version;
		enum kind kind;
	} all[] = {
		{"efadv_create_driver_qp", "EFA_1.0", RETURNS_POINTER},
		{"efadv_create_qp_ex", "EFA_1.1", RETURNS_POINTER},
		{"efadv_query_ah", "EFA_1.1", RETURNS_ERRNO},
		{"efadv_query_device", "EFA_1.1", RETURNS_ERRNO},
		{"efadv_cq_from_ibv_cq_ex", "EFA_1.2", RETURNS_POINTER},
		{"efadv_create_cq", "EFA_1.2", RETURNS_POINTER},
		{"efadv_query_mr", "EFA_1.3", RETURNS_ERRNO},
		{"efadv_query_qp_wqs", "EFA_1.4", RETURNS_ERRNO},
		{"efadv_query_cq", "EFA_1.4", RETURNS_ERRNO},
		{"efadv_get_max_sq_depth", "EFA_1.5", RETURNS_NEGATIVE},
		{"efadv_get_max_rq_depth", "EFA_1.5", RETURNS_NEGATIVE},
		{"efadv_qp_from_ibv_qp_ex", "EFA_1.6", RETURNS_POINTER},
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		void *found = dlvsym(RTLD_DEFAULT, all[i].name, all[i].version);
		uint64_t attr[64] = {0};
		int error = 0;

		CHECK(found, "%s@%s is missing", all[i].name, all[i].version);
		errno = 0;
		if (all[i].kind == RETURNS_POINTER)
			error = ((void *(*)(void *, void *, void *, uint32_t))found)(context, attr, attr, 512) ? 0 : errno;
		else
			error = ((int (*)(void *, void *, uint32_t, uint32_t))found)(context, attr, 512, 512);
		if (all[i].kind == RETURNS_NEGATIVE)
			error = -error;
		CHECK(strstr(softverbs_last_reason(), all[i].name), "%s gives no reason", all[i].name);
		expect(all[i].name, error, EOPNOTSUPP);
	}
	CHECK(dlvsym(RTLD_DEFAULT, "efadv_create_comp_cntr", "EFA_1.7"), "efadv_create_comp_cntr@EFA_1.7 is missing");
}

int main(void)
{
	struct pair *pair;

	setvbuf(stdout, NULL, _IOLBF, 0);
	pair = make_pair(NULL);
	attributes(pair->context);
	addresses(pair->context);
	capacity(pair->context);
	flags(pair->context);
	values(pair->context);
	not_efa(pair->context);
	close_pair(pair);
	traffic();
	unmapped();
	puts("done");
	return 0;
}
