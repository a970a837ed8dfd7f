// SPDX-License-Identifier: MIT
/* Posting work requests (ibv_post_send(3), ibv_post_recv(3), ibv_post_srq_recv(3)): each is written to a slot of shared
 * memory, then the tail is stored and the device woken if it sleeps. What can be checked here is refused here, with the
 * errno; the device checks everything again.
 */
#include <stdio.h>

#include "driver.h"

#define STORE(type, slot, offset, value) (*(type *)((slot) + (offset)) = (value))
#define KNOWN_FLAGS (IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE)
#define MAX_MESSAGE (1ULL << 30)
#define ATOMIC_SIZE 8

static const char *const state_names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};

void sv_queue_open(struct sv_queue *queue, uint8_t *memory, const struct sv_rings *rings, bool sends, uint32_t max_wr,
		   uint32_t max_sge)
{
	uint32_t slots = sends ? rings->sq_slots : rings->rq_slots;

	queue->slots = memory + (sends ? rings->sq_offset : rings->rq_offset);
	queue->stride = sends ? rings->sq_stride : rings->rq_stride;
	queue->mask = slots ? slots - 1 : 0;
	queue->max_wr = slots ? max_wr : 0;
	queue->max_sge = max_sge;
	queue->mark = rings->mark;
	queue->tail_shared = (_Atomic uint64_t *)(memory + (sends ? SV_QP_SQ_TAIL : SV_QP_RQ_TAIL));
	queue->head_shared = (_Atomic uint64_t *)(memory + (sends ? SV_QP_SQ_HEAD : SV_QP_RQ_HEAD));
	queue->tail = atomic_load(queue->tail_shared);
}

static uint32_t state_of(const struct sv_qp *self)
{
	uint32_t state = atomic_load_explicit((_Atomic uint32_t *)(self->memory + SV_QP_STATE), memory_order_relaxed);

	return state <= IBV_QPS_ERR ? state : IBV_QPS_ERR;
}

static inline uint8_t *slot_at(const struct sv_queue *queue, uint64_t index)
{
	return queue->slots + (index & queue->mask) * queue->stride;
}

/* How many slots are in use: of a send queue, since the last completion that was polled. */
static inline uint64_t in_use(const struct sv_queue *queue, uint64_t tail)
{
	if (queue->polled)
		return (uint32_t)tail - atomic_load_explicit(queue->polled, memory_order_acquire);
	return tail - atomic_load_explicit(queue->head_shared, memory_order_acquire);
}

static inline bool is_full(const struct sv_queue *queue, uint64_t tail)
{
	return in_use(queue, tail) >= queue->max_wr;
}

/* Says why there is no room for a send: what would free the slots. */
static int refuse_full(const struct sv_qp *self, uint64_t tail)
{
	const struct sv_queue *queue = &self->sends;
	uint64_t retired = atomic_load_explicit(queue->head_shared, memory_order_acquire);
	uint64_t first = tail - in_use(queue, tail);
	unsigned int signaled = 0, ready = 0, silent = 0;
	char words[160];

	if (!queue->polled || !queue->max_wr)
		return sv_refuse(ENOMEM, "the send queue of QP %#x is full: max_send_wr=%u", self->qp.qp_num,
				 queue->max_wr);
	for (uint64_t index = first; index < tail; index++) {
		silent++;
		if (!(slot_at(queue, index)[SV_SQ_FLAGS] & IBV_SEND_SIGNALED) && state_of(self) < IBV_QPS_SQE)
			continue; /* in the states SQE and ERR each has a completion, with its error */
		signaled++;
		ready += index < retired;
		silent = 0;
	}
	if (!signaled)
		snprintf(words, sizeof(words),
			 "none is signaled, so no completion can free a slot: signal at least one in max_send_wr, and poll");
	else if (silent)
		snprintf(words, sizeof(words), "%u completions wait to be polled, the last %u work requests are unsignaled",
			 ready, silent);
	else
		snprintf(words, sizeof(words), "%u completions wait to be polled", ready);
	return sv_refuse(ENOMEM,
			 "the send queue of QP %#x is full: max_send_wr=%u, all slots are in use, from wr_id=%#llx on. A "
			 "slot is free once the completion of its work request, or of a later one, has been polled. %llu "
			 "of the work requests are done, %s",
			 self->qp.qp_num, queue->max_wr,
			 (unsigned long long)*(const uint64_t *)(slot_at(queue, first) + SV_SQ_WR_ID),
			 (unsigned long long)(retired > first ? retired - first : 0), words);
}

void sv_publish(struct sv_connection *connection, struct sv_queue *queue)
{
	atomic_store_explicit(queue->tail_shared, queue->tail, memory_order_release);
	sv_mark(connection, queue->mark);
	sv_doorbell(connection);
}

/* -- what a send work request consists of */

static bool is_answered(unsigned int opcode)
{
	return (opcode >= IBV_WR_RDMA_READ && opcode <= IBV_WR_ATOMIC_FETCH_AND_ADD) || opcode >= SV_WR_FLUSH;
}

int sv_check_post(struct sv_qp *self, unsigned int opcode, unsigned int flags, uint64_t tail)
{
	uint32_t number = self->qp.qp_num;
	uint32_t state;

	if (atomic_load_explicit(&self->connection->dead, memory_order_relaxed))
		return sv_refuse(EIO, "the device is gone");
	if (opcode > IBV_WR_ATOMIC_WRITE || !(self->allowed >> opcode & 1))
		return sv_refuse(EINVAL, "QP %#x: a QP of its type has no operation %s", number,
				 sv_wr_opcode_str(opcode));
	state = state_of(self);
	if (state < IBV_QPS_RTS)
		return sv_refuse(EINVAL, "QP %#x is in the state %s, sends need RTS", number, state_names[state]);
	if (__builtin_expect(is_full(&self->sends, tail), 0))
		return refuse_full(self, tail);
	if (flags & ~KNOWN_FLAGS)
		return sv_refuse(EINVAL, "send_flags %#x: of no meaning here: %#x", flags, flags & ~KNOWN_FLAGS);
	if (is_answered(opcode) && !__atomic_load_n(&self->max_reads, __ATOMIC_RELAXED))
		return sv_refuse(EINVAL, "max_rd_atomic of QP %#x is 0: it has no %s", number,
				 sv_wr_opcode_str(opcode));
	return 0;
}

int sv_check_length(unsigned int opcode, unsigned int elements, uint64_t length)
{
	bool fetching = opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;

	if (length > MAX_MESSAGE)
		return sv_refuse(EINVAL, "a message of %llu bytes: at most %llu", (unsigned long long)length,
				 MAX_MESSAGE);
	if ((fetching || opcode == IBV_WR_ATOMIC_WRITE) && length != ATOMIC_SIZE)
		return sv_refuse(EINVAL, "an atomic is %d bytes, its scatter/gather list holds %llu", ATOMIC_SIZE,
				 (unsigned long long)length);
	if (fetching && elements != 1)
		return sv_refuse(EINVAL, "an atomic has one scatter/gather element, not %u", elements);
	return 0;
}

void sv_put_head(struct sv_qp *self, uint8_t *slot, uint64_t wr_id, unsigned int opcode, unsigned int flags)
{
	if (self->signal_all)
		flags |= IBV_SEND_SIGNALED;
	STORE(uint64_t, slot, SV_SQ_WR_ID, wr_id);
	STORE(uint8_t, slot, SV_SQ_OPCODE, opcode);
	STORE(uint8_t, slot, SV_SQ_FLAGS, flags);
	STORE(uint16_t, slot, SV_SQ_NUM_SGE, 0);
	STORE(uint32_t, slot, SV_SQ_LENGTH, 0);
}

int sv_put_sges(uint8_t *at, const struct ibv_sge *list, size_t count, uint32_t most, uint64_t *length)
{
	if (count > most)
		return sv_refuse(EINVAL, "%zu scatter/gather elements: at most %u", count, most);
	*length = 0;
	for (size_t i = 0; i < count; i++) {
		*length += list[i].length;
		memcpy(at + i * SV_SGE_SIZE, list + i, SV_SGE_SIZE);
	}
	return 0;
}

int sv_put_inline(struct sv_qp *self, uint8_t *slot, unsigned int opcode, const struct ibv_data_buf *list,
		  size_t count)
{
	uint64_t at = *(uint32_t *)(slot + SV_SQ_LENGTH); /* behind what is there already */
	uint64_t most = self->max_inline;

	if (opcode >= IBV_WR_RDMA_READ && opcode != IBV_WR_SEND_WITH_INV && opcode != IBV_WR_ATOMIC_WRITE)
		return sv_refuse(EINVAL, "SEND_INLINE has no meaning with %s", sv_wr_opcode_str(opcode));
	if (opcode == IBV_WR_ATOMIC_WRITE && most < ATOMIC_SIZE)
		most = ATOMIC_SIZE;
	for (size_t i = 0; i < count; i++) {
		if (list[i].length > most || at + list[i].length > most)
			return sv_refuse(EINVAL, "%llu bytes inline: max_inline_data=%u",
					 (unsigned long long)(at + list[i].length), self->max_inline);
		if (list[i].length)
			memcpy(slot + SV_SQ_SGES + at, list[i].addr, list[i].length);
		at += list[i].length;
	}
	STORE(uint32_t, slot, SV_SQ_LENGTH, at);
	STORE(uint8_t, slot, SV_SQ_FLAGS, *(slot + SV_SQ_FLAGS) | IBV_SEND_INLINE);
	return 0;
}

void sv_put_bind(uint8_t *slot, const struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	STORE(uint32_t, slot, SV_SQ_RKEY, mw->rkey);
	STORE(uint32_t, slot, SV_SQ_IMM, rkey);
	STORE(uint64_t, slot, SV_SQ_REMOTE_ADDRESS, info->addr);
	STORE(uint64_t, slot, SV_SQ_COMPARE_ADD, info->length);
	STORE(uint32_t, slot, SV_SQ_SWAP, info->mr ? info->mr->lkey : 0);
	STORE(uint32_t, slot, SV_SQ_SWAP + 4, info->mw_access_flags);
}

/* The payload of a work request: inline, or its list of elements. */
static int put_payload(struct sv_qp *self, uint8_t *slot, const struct ibv_send_wr *wr)
{
	uint64_t length = 0;
	int error = 0;

	if (wr->num_sge < 0)
		return sv_refuse(EINVAL, "num_sge=%d", wr->num_sge);
	if (wr->num_sge > 1 && (uint32_t)wr->num_sge > self->sends.max_sge) /* the limit holds for inline data, too */
		return sv_refuse(EINVAL, "%d scatter/gather elements: max_send_sge=%u", wr->num_sge,
				 self->sends.max_sge);
	if (wr->send_flags & IBV_SEND_INLINE) {
		struct ibv_data_buf part;

		for (int i = 0; i < wr->num_sge && !error; i++) {
			part.addr = (void *)(uintptr_t)wr->sg_list[i].addr;
			part.length = wr->sg_list[i].length;
			error = sv_put_inline(self, slot, wr->opcode, &part, 1);
		}
		if (!wr->num_sge)
			error = sv_put_inline(self, slot, wr->opcode, NULL, 0);
		length = *(uint32_t *)(slot + SV_SQ_LENGTH);
	} else {
		error = sv_put_sges(slot + SV_SQ_SGES, wr->sg_list, wr->num_sge, self->sends.max_sge, &length);
		STORE(uint16_t, slot, SV_SQ_NUM_SGE, wr->num_sge);
		STORE(uint32_t, slot, SV_SQ_LENGTH, length);
	}
	return error ? error : sv_check_length(wr->opcode, wr->num_sge, length);
}

/* What a work request names besides its payload. `type`: of the memory windows that it may bind. */
static int put_target(struct sv_qp *self, uint8_t *slot, const struct ibv_send_wr *wr, enum ibv_mw_type type)
{
	STORE(uint32_t, slot, SV_SQ_IMM, wr->imm_data);
	if (wr->opcode == IBV_WR_BIND_MW) {
		if (!wr->bind_mw.mw)
			return sv_refuse(EINVAL, "BIND_MW without a memory window");
		if (wr->bind_mw.mw->type != type)
			return sv_refuse(EINVAL, "BIND_MW is for memory windows of type 2; ibv_bind_mw binds those of type 1");
		sv_put_bind(slot, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
	} else if (self->qp.qp_type == IBV_QPT_UD) {
		if (!wr->wr.ud.ah)
			return sv_refuse(EINVAL, "a datagram without an address handle");
		STORE(uint32_t, slot, SV_SQ_AH, ((struct sv_ah *)wr->wr.ud.ah)->number);
		STORE(uint32_t, slot, SV_SQ_DESTINATION, wr->wr.ud.remote_qpn);
		STORE(uint32_t, slot, SV_SQ_RKEY, wr->wr.ud.remote_qkey);
	} else if (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		STORE(uint64_t, slot, SV_SQ_REMOTE_ADDRESS, wr->wr.atomic.remote_addr);
		STORE(uint32_t, slot, SV_SQ_RKEY, wr->wr.atomic.rkey);
		STORE(uint64_t, slot, SV_SQ_COMPARE_ADD, wr->wr.atomic.compare_add);
		STORE(uint64_t, slot, SV_SQ_SWAP, wr->wr.atomic.swap);
	} else {
		STORE(uint64_t, slot, SV_SQ_REMOTE_ADDRESS, wr->wr.rdma.remote_addr);
		STORE(uint32_t, slot, SV_SQ_RKEY, wr->wr.rdma.rkey);
	}
	if (self->qp.qp_type == IBV_QPT_XRC_SEND)
		STORE(uint32_t, slot, SV_SQ_DESTINATION, wr->qp_type.xrc.remote_srqn);
	return 0;
}

/* Bytes of a message, as its list says. */
static uint64_t length_of(const struct ibv_sge *list, int count)
{
	uint64_t length = 0;

	for (int i = 0; i < count; i++)
		length += list[i].length;
	return length;
}

/* Whether a plan of faults lets a send fail. */
static int ask_send(struct sv_qp *self, const struct ibv_send_wr *wr)
{
	if (__builtin_expect(!sv_is_planned(self->connection, SV_ASK_POST_SEND), 1))
		return 0;
	return sv_ask_post(self->connection, SV_ASK_POST_SEND, self->qp.handle, wr->wr_id, wr->opcode,
			   length_of(wr->sg_list, wr->num_sge));
}

/* Writes one work request behind the tail, which moves; with the queue's lock held. */
static int put(struct sv_qp *self, const struct ibv_send_wr *wr, enum ibv_mw_type type)
{
	struct sv_queue *queue = &self->sends;
	uint8_t *slot = slot_at(queue, queue->tail);
	int error = ask_send(self, wr);

	if (!error)
		error = sv_check_post(self, wr->opcode, wr->send_flags, queue->tail);
	if (error)
		return error;
	sv_put_head(self, slot, wr->wr_id, wr->opcode, wr->send_flags);
	error = put_payload(self, slot, wr);
	if (!error)
		error = put_target(self, slot, wr, type);
	if (!error)
		queue->tail++;
	return error;
}

static int post_sends(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad, enum ibv_mw_type type)
{
	struct sv_qp *self = (struct sv_qp *)qp;
	struct sv_queue *queue = &self->sends;
	uint64_t before;
	int error = 0;

	pthread_mutex_lock(&queue->lock);
	before = queue->tail;
	for (; wr && !error; wr = error ? wr : wr->next)
		error = put(self, wr, type);
	if (queue->tail != before)
		sv_publish(self->connection, queue);
	pthread_mutex_unlock(&queue->lock);
	if (error)
		*bad = wr;
	return error;
}

int sv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return post_sends(qp, wr, bad, IBV_MW_TYPE_2);
}

/* ibv_bind_mw(3): a window of type 1 takes a new key each time. */
int sv_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct ibv_send_wr wr = {.wr_id = bind->wr_id, .opcode = IBV_WR_BIND_MW, .send_flags = bind->send_flags};
	struct ibv_send_wr *bad;
	int error = sv_ask(((struct sv_qp *)qp)->connection, SV_ASK_BIND_MW, qp->handle, 0);

	if (error)
		return error;
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.bind_info = bind->bind_info;
	error = post_sends(qp, &wr, &bad, IBV_MW_TYPE_1);
	if (!error)
		mw->rkey = wr.bind_mw.rkey;
	return error;
}

/* -- receiving */

/* Where work requests are posted to. */
struct receiver {
	struct sv_connection *connection;
	struct sv_queue *queue;
	const char *kind; /* QP or SRQ */
	uint32_t number;
	uint32_t handle;
	unsigned int verb; /* SV_ASK_* */
	const struct sv_qp *qp; /* NULL for an SRQ */
};

/* Whether a plan of faults lets a receive fail. */
static int ask_receive(const struct receiver *to, const struct ibv_recv_wr *wr)
{
	if (__builtin_expect(!sv_is_planned(to->connection, to->verb), 1))
		return 0;
	return sv_ask_post(to->connection, to->verb, to->handle, wr->wr_id, 0, length_of(wr->sg_list, wr->num_sge));
}

/* Writes a list of receive work requests; with the queue's lock held. */
static int put_receives(const struct receiver *to, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct sv_queue *queue = to->queue;

	for (; wr; wr = wr->next) {
		uint8_t *slot = slot_at(queue, queue->tail);
		uint64_t length = 0;
		int error = ask_receive(to, wr);

		if (error)
			; /* planned */
		else if (is_full(queue, queue->tail))
			error = sv_refuse(ENOMEM, "the receive queue of %s %#x is full: its max_wr is %u",
					  to->kind, to->number, queue->max_wr);
		else if (wr->num_sge < 0)
			error = sv_refuse(EINVAL, "num_sge=%d", wr->num_sge);
		else
			error = sv_put_sges(slot + SV_RQ_SGES, wr->sg_list, wr->num_sge, queue->max_sge, &length);
		if (error) {
			*bad = wr;
			return error;
		}
		STORE(uint64_t, slot, SV_RQ_WR_ID, wr->wr_id);
		STORE(uint32_t, slot, SV_RQ_NUM_SGE, wr->num_sge);
		STORE(uint32_t, slot, SV_RQ_LENGTH, length < MAX_MESSAGE ? length : MAX_MESSAGE);
		queue->tail++;
	}
	return 0;
}

/* Whether the device must be woken for receives: only where they are flushed at once. A message wakes it by itself, and
 * before it sleeps it looks, behind a barrier as here, at what was posted in a state that it has changed.
 */
static bool are_urgent(const struct sv_qp *qp)
{
	if (!qp)
		return false;
	atomic_thread_fence(memory_order_seq_cst);
	return state_of(qp) == IBV_QPS_ERR;
}

/* Posts to a receive queue. */
static int post_receives(const struct receiver *to, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct sv_queue *queue = to->queue;
	uint64_t before;
	int error;

	if (atomic_load_explicit(&to->connection->dead, memory_order_relaxed)) {
		*bad = wr;
		return sv_refuse(EIO, "the device is gone");
	}
	pthread_mutex_lock(&queue->lock);
	before = queue->tail;
	error = put_receives(to, wr, bad);
	if (queue->tail != before) {
		atomic_store_explicit(queue->tail_shared, queue->tail, memory_order_release);
		sv_mark(to->connection, queue->mark);
		if (are_urgent(to->qp))
			sv_doorbell(to->connection);
	}
	pthread_mutex_unlock(&queue->lock);
	return error;
}

int sv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct sv_qp *self = (struct sv_qp *)qp;
	int error = 0;

	if (self->opened || qp->srq || !self->memory || qp->qp_type == IBV_QPT_XRC_SEND ||
	    qp->qp_type == IBV_QPT_XRC_RECV)
		error = sv_refuse(EINVAL, "QP %#x has no receive queue of its own: post to its SRQ, if it has one",
				  qp->qp_num);
	else if (state_of(self) == IBV_QPS_RESET)
		error = sv_refuse(EINVAL, "QP %#x is in the state RESET, receives need INIT", qp->qp_num);
	if (error) {
		*bad = wr;
		return error;
	}
	return post_receives(&(struct receiver){self->connection, &self->receives, "QP", qp->qp_num, qp->handle,
						SV_ASK_POST_RECV, self},
			     wr, bad);
}

int sv_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct sv_srq *self = (struct sv_srq *)srq;

	return post_receives(&(struct receiver){self->connection, &self->receives, "SRQ", self->srq_num, srq->handle,
						SV_ASK_POST_SRQ_RECV, NULL},
			     wr, bad);
}
