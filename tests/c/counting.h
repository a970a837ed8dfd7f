/* SPDX-License-Identifier: MIT */
/* Completion counters for the C programs of this folder: what was expected is said, and what came. */
#ifndef COUNTING_H
#define COUNTING_H

#include "pair.h"
#include "softverbs_comp_cntr.h"

#define SEND IBV_QP_ATTACH_COMP_CNTR_OP_SEND
#define RECV IBV_QP_ATTACH_COMP_CNTR_OP_RECV
#define READ IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ
#define REMOTE_READ IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ
#define WRITE IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE
#define REMOTE_WRITE IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE

static inline const char *errno_name(int error)
{
	switch (error) {
	case 0:
		return "0";
	case EINVAL:
		return "EINVAL";
	case EBUSY:
		return "EBUSY";
	case ENOMEM:
		return "ENOMEM";
	case EFAULT:
		return "EFAULT";
	case EOPNOTSUPP:
		return "EOPNOTSUPP";
	default:
		return strerror(error);
	}
}

/* `what` has to give `wanted`. */
static inline void expect(const char *what, int got, int wanted)
{
	CHECK(got == wanted, "%s: %s, not %s", what, errno_name(got), errno_name(wanted));
	printf("%s: %s\n", what, errno_name(got));
}

static inline struct ibv_comp_cntr *make(struct ibv_context *context, enum ibv_comp_cntr_type type)
{
	struct ibv_comp_cntr_init_attr attr = {.type = type};
	struct ibv_comp_cntr *counter = ibv_create_comp_cntr(context, &attr);

	CHECK(counter, "ibv_create_comp_cntr");
	return counter;
}

static inline int attach(struct ibv_qp *qp, struct ibv_comp_cntr *counter, uint32_t comp_mask, uint32_t op_mask)
{
	struct ibv_qp_attach_comp_cntr_attr attr = {comp_mask, op_mask};

	return ibv_qp_attach_comp_cntr(qp, counter, &attr);
}

static inline uint64_t value_of(struct ibv_comp_cntr *counter)
{
	uint64_t value = 0;

	CHECK(!ibv_read_comp_cntr(counter, &value), "ibv_read_comp_cntr");
	return value;
}

static inline uint64_t errors_of(struct ibv_comp_cntr *counter)
{
	uint64_t value = 0;

	CHECK(!ibv_read_err_comp_cntr(counter, &value), "ibv_read_err_comp_cntr");
	return value;
}

/* Waits until both numbers are as they have to be; they may lag behind. */
static inline void counts(const char *what, struct ibv_comp_cntr *counter, uint64_t value, uint64_t errors)
{
	time_t start = time(NULL);

	while ((value_of(counter) != value || errors_of(counter) != errors) && time(NULL) - start < 10)
		usleep(1000);
	CHECK(value_of(counter) == value && errors_of(counter) == errors,
	      "%s: %llu completions and %llu errors, not %llu and %llu", what, (unsigned long long)value_of(counter),
	      (unsigned long long)errors_of(counter), (unsigned long long)value, (unsigned long long)errors);
	printf("%s: %llu completions, %llu errors\n", what, (unsigned long long)value, (unsigned long long)errors);
}

#endif
