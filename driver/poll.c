// SPDX-License-Identifier: MIT
/* Taking completions out of a queue: ibv_poll_cq(3), and one by one (ibv_create_cq_ex(3)).
 *
 * The device writes a slot, then the tail; the driver reads slots, then writes the head.
 */
#include <sched.h>
#include <time.h>

#include "driver.h"

#define YIELD_EVERY 4 /* polls of an empty queue */
#define FIELD(type, slot, offset) (*(const type *)((slot) + (offset)))

static inline uint64_t load_tail(const struct sv_cq *self)
{
	return atomic_load_explicit((_Atomic uint64_t *)(self->header + SV_CQ_TAIL), memory_order_acquire);
}

/* Whether there is no completion. Without the lock, the head has to be read first: it never passes the tail, so where the
 * tail that is read afterwards is the same, the queue is empty at that moment.
 */
static inline bool is_empty(const struct sv_cq *self)
{
	uint64_t head = __atomic_load_n(&self->head, __ATOMIC_ACQUIRE);

	return load_tail(self) == head;
}

static inline void store_head(struct sv_cq *self, uint64_t head)
{
	sv_set_head(self, head);
	atomic_store_explicit((_Atomic uint64_t *)(self->header + SV_CQ_HEAD), head, memory_order_release);
}

/* How many completions there are. Where the device has overwritten some, the oldest are skipped. */
static inline uint64_t waiting(struct sv_cq *self)
{
	uint64_t count = load_tail(self) - self->head;

	if (self->overwritten && count > (uint64_t)self->cq.cqe && (int64_t)count > 0) {
		sv_set_head(self, self->head + count - self->cq.cqe);
		count = self->cq.cqe;
	}
	return count;
}

static inline const uint8_t *slot_at(const struct sv_cq *self, uint64_t index)
{
	return self->slots + (index & self->mask) * SV_CQ_SLOT;
}

/* Polling the completion of a send frees its slot and those before it. The device has them back already. */
static inline void free_slots(struct sv_cq *self, const uint8_t *slot)
{
	uint64_t frees = FIELD(uint64_t, slot, SV_CQ_FREES);
	_Atomic uint32_t *polled;

	if (!frees)
		return;
	polled = &self->connection->polled[(frees >> 32) % SV_SEND_QUEUES].index;
	if ((int32_t)((uint32_t)frees - atomic_load_explicit(polled, memory_order_relaxed)) > 0)
		atomic_store_explicit(polled, (uint32_t)frees, memory_order_release);
}

static void copy_completion(struct ibv_wc *wc, const uint8_t *slot)
{
	wc->wr_id = FIELD(uint64_t, slot, SV_CQ_WR_ID);
	wc->status = FIELD(uint32_t, slot, SV_CQ_STATUS);
	wc->opcode = FIELD(uint32_t, slot, SV_CQ_OPCODE);
	wc->vendor_err = FIELD(uint32_t, slot, SV_CQ_VENDOR_ERR);
	wc->byte_len = FIELD(uint32_t, slot, SV_CQ_BYTE_LEN);
	wc->imm_data = FIELD(uint32_t, slot, SV_CQ_IMM);
	wc->qp_num = FIELD(uint32_t, slot, SV_CQ_QP_NUM);
	wc->src_qp = FIELD(uint32_t, slot, SV_CQ_SRC_QP);
	wc->wc_flags = FIELD(uint32_t, slot, SV_CQ_FLAGS);
	wc->pkey_index = FIELD(uint16_t, slot, SV_CQ_PKEY_INDEX);
	wc->slid = FIELD(uint16_t, slot, SV_CQ_SLID);
	wc->sl = FIELD(uint8_t, slot, SV_CQ_SL);
	wc->dlid_path_bits = FIELD(uint8_t, slot, SV_CQ_DLID_PATH_BITS);
}

/* Where SOFTVERBS_EXPLAIN=1: the words of a completion with an error, once. */
static void explain_completion(struct sv_cq *self, const uint8_t *slot, uint64_t index)
{
	struct sv_completion_reason_request request = {.handle = self->cq.handle, .index = index};
	struct sv_completion_reason_response response;
	uint32_t status = FIELD(uint32_t, slot, SV_CQ_STATUS);
	const char *wanted = getenv("SOFTVERBS_EXPLAIN");
	int before = errno;

	if (status == IBV_WC_SUCCESS || status == IBV_WC_WR_FLUSH_ERR || !wanted || !*wanted || !strcmp(wanted, "0"))
		return;
	if (!sv_call(self->connection, SV_COMPLETION_REASON, &request, sizeof(request), &response, sizeof(response)))
		sv_refuse(0, "%s (%d), wr_id=%#llx: %.503s", ibv_wc_status_str(status), (int)status,
			  (unsigned long long)FIELD(uint64_t, slot, SV_CQ_WR_ID), response.text);
	errno = before;
}

/* A program that polls and finds nothing lets others run now and then: where it has no processor of its own, the device
 * may be waiting for this one. True where the device is gone.
 */
static bool is_idle(struct sv_cq *self)
{
	unsigned int polls = atomic_fetch_add_explicit(&self->idle_polls, 1, memory_order_relaxed);

	if (polls % YIELD_EVERY == YIELD_EVERY - 1)
		sched_yield();
	return sv_is_lost(self->connection) && is_empty(self);
}

/* What a child of fork gets: the head belongs to its parent. */
static int not_ours(void)
{
	return sv_refuse(EIO, "the completion queue belongs to the process that this one was forked from");
}

int sv_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
	struct sv_cq *self = (struct sv_cq *)cq;
	uint64_t there;
	int taken;

	if (__builtin_expect(self->connection->forked, 0)) {
		not_ours();
		return -1;
	}
	if (__builtin_expect(sv_ask(self->connection, SV_ASK_POLL_CQ, cq->handle, 0), 0))
		return -1;
	if (is_empty(self)) {
		if (is_idle(self)) {
			errno = EIO;
			return -1;
		}
		return 0;
	}
	pthread_mutex_lock(&self->lock);
	there = waiting(self);
	for (taken = 0; taken < count && (uint64_t)taken < there; taken++) {
		const uint8_t *slot = slot_at(self, self->head + taken);

		copy_completion(wc + taken, slot);
		if (__builtin_expect(wc[taken].status != IBV_WC_SUCCESS, 0))
			explain_completion(self, slot, self->head + taken);
		free_slots(self, slot);
	}
	if (taken)
		store_head(self, self->head + taken);
	pthread_mutex_unlock(&self->lock);
	return taken;
}

/* Arms the queue for completions behind the tail as it is seen here. The barrier stands between that and the poll that
 * follows: either the poll sees a completion, or the device, which looks here behind each tail that it stores, sees the
 * arming. So it need not be woken.
 */
static void arm(struct sv_cq *self, size_t offset)
{
	uint64_t word = (uint64_t)++self->armings << 32 | (uint32_t)load_tail(self);

	atomic_store_explicit((_Atomic uint64_t *)(self->header + offset), word, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
}

int sv_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	struct sv_cq *self = (struct sv_cq *)cq;
	int error;

	if (self->connection->forked)
		return not_ours();
	if (sv_is_lost(self->connection))
		return sv_refuse(EIO, "the device is gone");
	error = sv_ask(self->connection, SV_ASK_REQ_NOTIFY_CQ, cq->handle, 0);
	if (error)
		return error;
	pthread_mutex_lock(&self->arming);
	arm(self, solicited_only ? SV_CQ_ARM_SOLICITED : SV_CQ_ARM_ANY);
	pthread_mutex_unlock(&self->arming);
	return 0;
}

/* -- one by one */

static unsigned long this_thread(void)
{
	return (unsigned long)pthread_self();
}

/* Whether this thread is in a batch of a queue that locks. Only it can have stored its own name there. */
static bool holds(struct sv_cq *self)
{
	return atomic_load_explicit(&self->poller, memory_order_relaxed) == this_thread();
}

void sv_lock_cq(struct sv_cq *self)
{
	if (!holds(self))
		pthread_mutex_lock(&self->lock);
}

void sv_unlock_cq(struct sv_cq *self)
{
	if (!holds(self))
		pthread_mutex_unlock(&self->lock);
}

static void unlock(struct sv_cq *self)
{
	if (self->locks) {
		atomic_store_explicit(&self->poller, 0, memory_order_relaxed);
		pthread_mutex_unlock(&self->lock);
	}
}

/* Takes the oldest completion out and makes it the current one: 0, or ENOENT where there is none. What is done to the
 * queue until the next step (its QP is destroyed or reset, it is resized) does not concern the copy.
 */
static int step(struct sv_cq *self)
{
	const uint8_t *slot;

	if (!waiting(self))
		return ENOENT;
	slot = self->current;
	memcpy(self->current, slot_at(self, self->head), SV_CQ_SLOT);
	self->ex.wr_id = FIELD(uint64_t, slot, SV_CQ_WR_ID);
	self->ex.status = FIELD(uint32_t, slot, SV_CQ_STATUS);
	if (self->ex.status != IBV_WC_SUCCESS)
		explain_completion(self, slot, self->head);
	free_slots(self, slot);
	store_head(self, self->head + 1);
	return 0;
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	struct sv_cq *self = (struct sv_cq *)cq;
	int error;

	if (attr && attr->comp_mask)
		return sv_refuse(EINVAL, "ibv_start_poll: comp_mask=%#x is not known", attr->comp_mask);
	if (self->connection->forked)
		return not_ours();
	error = sv_ask(self->connection, SV_ASK_POLL_CQ, self->cq.handle, 0);
	if (error)
		return error;
	if (is_empty(self))
		return is_idle(self) ? EIO : ENOENT;
	if (self->locks) {
		pthread_mutex_lock(&self->lock);
		atomic_store_explicit(&self->poller, this_thread(), memory_order_relaxed);
	}
	error = step(self);
	if (error)
		unlock(self);
	return error;
}

static int next_poll(struct ibv_cq_ex *cq)
{
	struct sv_cq *self = (struct sv_cq *)cq;
	int error = sv_ask(self->connection, SV_ASK_POLL_CQ, self->cq.handle, 0);

	return error ? error : step(self);
}

static void end_poll(struct ibv_cq_ex *cq)
{
	unlock((struct sv_cq *)cq);
}

#define READ(result, name, type, offset)                                                                               \
	static result read_##name(struct ibv_cq_ex *cq)                                                                \
	{                                                                                                              \
		return (result)FIELD(type, ((struct sv_cq *)cq)->current, offset);                                     \
	}

READ(enum ibv_wc_opcode, opcode, uint32_t, SV_CQ_OPCODE)
READ(uint32_t, vendor_err, uint32_t, SV_CQ_VENDOR_ERR)
READ(uint32_t, byte_len, uint32_t, SV_CQ_BYTE_LEN)
READ(__be32, imm_data, uint32_t, SV_CQ_IMM)
READ(uint32_t, qp_num, uint32_t, SV_CQ_QP_NUM)
READ(uint32_t, src_qp, uint32_t, SV_CQ_SRC_QP)
READ(unsigned int, wc_flags, uint32_t, SV_CQ_FLAGS)
READ(uint32_t, slid, uint16_t, SV_CQ_SLID)
READ(uint8_t, sl, uint8_t, SV_CQ_SL)
READ(uint8_t, dlid_path_bits, uint8_t, SV_CQ_DLID_PATH_BITS)
READ(uint64_t, completion_ts, uint64_t, SV_CQ_TIMESTAMP)

static int64_t nanoseconds(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Nanoseconds since 1970. */
static uint64_t read_wallclock(struct ibv_cq_ex *cq)
{
	return read_completion_ts(cq) + nanoseconds(CLOCK_REALTIME) - nanoseconds(CLOCK_MONOTONIC);
}

void sv_fill_polling(struct sv_cq *self)
{
	struct ibv_cq_ex *ex = &self->ex;

	ex->start_poll = start_poll;
	ex->next_poll = next_poll;
	ex->end_poll = end_poll;
	ex->read_opcode = read_opcode;
	ex->read_vendor_err = read_vendor_err;
	ex->read_byte_len = read_byte_len;
	ex->read_imm_data = read_imm_data;
	ex->read_qp_num = read_qp_num;
	ex->read_src_qp = read_src_qp;
	ex->read_wc_flags = read_wc_flags;
	ex->read_slid = read_slid;
	ex->read_sl = read_sl;
	ex->read_dlid_path_bits = read_dlid_path_bits;
	ex->read_completion_ts = read_completion_ts;
	ex->read_completion_wallclock_ns = read_wallclock;
}
