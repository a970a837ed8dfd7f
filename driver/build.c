// SPDX-License-Identifier: MIT
/* Building send work requests piece by piece: ibv_wr_start(3) to ibv_wr_complete(3).
 *
 * They are written to slots behind the tail, which ibv_wr_complete moves; so all of them are posted, or none. The first
 * thing that is wrong is what ibv_wr_complete returns.
 */
#include "driver.h"

#define STORE(type, slot, offset, value) (*(type *)((slot) + (offset)) = (value))

static inline struct sv_qp *of(struct ibv_qp_ex *qp)
{
	return (struct sv_qp *)qp;
}

static void wr_start(struct ibv_qp_ex *qp)
{
	struct sv_qp *self = of(qp);

	pthread_mutex_lock(&self->sends.lock);
	self->new_tail = self->sends.tail;
	self->slot = NULL;
	self->error = 0;
}

static void wr_abort(struct ibv_qp_ex *qp)
{
	struct sv_qp *self = of(qp);

	self->slot = NULL;
	pthread_mutex_unlock(&self->sends.lock);
}

/* Remembers the first thing that is wrong; the work request is not written any further. */
static void note(struct sv_qp *self, int error)
{
	if (error && !self->error)
		self->error = error;
	if (error)
		self->slot = NULL;
}

/* Whether the last work request is complete, and may be posted. */
static void finish(struct sv_qp *self)
{
	const uint8_t *slot = self->slot;

	if (!slot)
		return;
	if (self->lacks_data)
		note(self, sv_refuse(EINVAL, "QP %#x, wr_id=%#llx: no data setter was called for %s; for a message of 0 "
				     "bytes, set 0 bytes", self->qp.qp_num,
				     (unsigned long long)*(const uint64_t *)(slot + SV_SQ_WR_ID),
				     sv_wr_opcode_str(slot[SV_SQ_OPCODE])));
	else if (self->lacks_destination)
		note(self, sv_refuse(EINVAL, "QP %#x, wr_id=%#llx: %s was not called", self->qp.qp_num,
				     (unsigned long long)*(const uint64_t *)(slot + SV_SQ_WR_ID),
				     self->qp.qp_type == IBV_QPT_UD ? "ibv_wr_set_ud_addr" : "ibv_wr_set_xrc_srqn"));
	else
		note(self, sv_check_length(slot[SV_SQ_OPCODE], *(const uint16_t *)(slot + SV_SQ_NUM_SGE),
					   *(const uint32_t *)(slot + SV_SQ_LENGTH)));
	if (!self->slot)
		return;
	note(self, sv_ask_post(self->connection, SV_ASK_POST_SEND, self->qp.handle, *(uint64_t *)(slot + SV_SQ_WR_ID),
			       slot[SV_SQ_OPCODE], *(uint32_t *)(slot + SV_SQ_LENGTH)));
}

static int wr_complete(struct ibv_qp_ex *qp)
{
	struct sv_qp *self = of(qp);
	int error;

	finish(self);
	error = self->error;
	if (!error && self->new_tail != self->sends.tail) {
		self->sends.tail = self->new_tail;
		sv_publish(self->connection, &self->sends);
	}
	self->slot = NULL;
	pthread_mutex_unlock(&self->sends.lock);
	if (error)
		errno = error;
	return error;
}

/* The bit of send_ops_flags that an operation needs. */
static uint64_t operation_bit(unsigned int opcode)
{
	switch (opcode) {
	case SV_WR_FLUSH:
		return SV_QP_EX_WITH_FLUSH;
	case IBV_WR_ATOMIC_WRITE:
		return IBV_QP_EX_WITH_ATOMIC_WRITE;
	default:
		return 1ULL << opcode; /* enum ibv_qp_create_send_ops_flags counts as enum ibv_wr_opcode does */
	}
}

/* Notes which setters the work request needs (ibv_wr_post(3), table of work requests). */
static void expect_setters(struct sv_qp *self, unsigned int opcode)
{
	bool local = opcode == IBV_WR_LOCAL_INV || opcode == IBV_WR_BIND_MW;

	self->lacks_data = !local && opcode != SV_WR_FLUSH && opcode != IBV_WR_ATOMIC_WRITE;
	self->lacks_destination =
		!local && (self->qp.qp_type == IBV_QPT_UD || self->qp.qp_type == IBV_QPT_XRC_SEND);
}

/* Whether the data of the last work request is to be set now; it is set once. */
static bool may_set_data(struct sv_qp *self)
{
	if (!self->slot || self->slot[SV_SQ_OPCODE] == SV_WR_FLUSH) /* listed with data, and carries none: annex A19 */
		return false;
	if (!self->lacks_data)
		note(self, sv_refuse(EINVAL, "QP %#x: %s has its data already, or takes none", self->qp.qp_num,
				     sv_wr_opcode_str(self->slot[SV_SQ_OPCODE])));
	self->lacks_data = false;
	return self->slot;
}

/* Begins a work request: its slot, or NULL where something is wrong already. */
static uint8_t *begin(struct ibv_qp_ex *qp, unsigned int opcode)
{
	struct sv_qp *self = of(qp);
	struct sv_queue *queue = &self->sends;
	unsigned int flags = qp->wr_flags & ~(unsigned int)IBV_SEND_INLINE;
	uint8_t *slot;

	finish(self);
	if (self->error)
		return NULL;
	if (!(self->operations & operation_bit(opcode)))
		note(self, sv_refuse(EINVAL, "QP %#x was made without %s in send_ops_flags", qp->qp_base.qp_num,
				     sv_wr_opcode_str(opcode)));
	else
		note(self, sv_check_post(self, opcode, flags, self->new_tail));
	if (self->error)
		return NULL;
	expect_setters(self, opcode);
	slot = queue->slots + (self->new_tail & queue->mask) * queue->stride;
	self->new_tail++;
	sv_put_head(self, slot, qp->wr_id, opcode, flags);
	STORE(uint32_t, slot, SV_SQ_IMM, 0);
	STORE(uint64_t, slot, SV_SQ_REMOTE_ADDRESS, 0);
	STORE(uint32_t, slot, SV_SQ_RKEY, 0);
	self->slot = slot;
	return slot;
}

/* -- operations */

static uint8_t *begin_remote(struct ibv_qp_ex *qp, unsigned int opcode, uint32_t rkey, uint64_t remote_addr)
{
	uint8_t *slot = begin(qp, opcode);

	if (slot) {
		STORE(uint64_t, slot, SV_SQ_REMOTE_ADDRESS, remote_addr);
		STORE(uint32_t, slot, SV_SQ_RKEY, rkey);
	}
	return slot;
}

static void begin_immediate(struct ibv_qp_ex *qp, unsigned int opcode, uint32_t immediate)
{
	uint8_t *slot = begin(qp, opcode);

	if (slot)
		STORE(uint32_t, slot, SV_SQ_IMM, immediate);
}

static void wr_send(struct ibv_qp_ex *qp)
{
	begin(qp, IBV_WR_SEND);
}

static void wr_send_imm(struct ibv_qp_ex *qp, __be32 imm_data)
{
	begin_immediate(qp, IBV_WR_SEND_WITH_IMM, imm_data);
}

static void wr_send_inv(struct ibv_qp_ex *qp, uint32_t invalidate_rkey)
{
	begin_immediate(qp, IBV_WR_SEND_WITH_INV, invalidate_rkey);
}

static void wr_local_inv(struct ibv_qp_ex *qp, uint32_t invalidate_rkey)
{
	begin_immediate(qp, IBV_WR_LOCAL_INV, invalidate_rkey);
}

static void wr_send_tso(struct ibv_qp_ex *qp, void *hdr, uint16_t hdr_sz, uint16_t mss)
{
	(void)hdr;
	(void)hdr_sz;
	(void)mss;
	begin(qp, IBV_WR_TSO); /* no type of QP has it */
}

static void wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr)
{
	begin_remote(qp, IBV_WR_RDMA_WRITE, rkey, remote_addr);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, __be32 imm_data)
{
	uint8_t *slot = begin_remote(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote_addr);

	if (slot)
		STORE(uint32_t, slot, SV_SQ_IMM, imm_data);
}

static void wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr)
{
	begin_remote(qp, IBV_WR_RDMA_READ, rkey, remote_addr);
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, uint64_t compare,
			      uint64_t swap)
{
	uint8_t *slot = begin_remote(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, remote_addr);

	if (slot) {
		STORE(uint64_t, slot, SV_SQ_COMPARE_ADD, compare);
		STORE(uint64_t, slot, SV_SQ_SWAP, swap);
	}
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, uint64_t add)
{
	uint8_t *slot = begin_remote(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, remote_addr);

	if (slot)
		STORE(uint64_t, slot, SV_SQ_COMPARE_ADD, add);
}

static void wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, const void *atomic_wr)
{
	struct ibv_data_buf data = {(void *)atomic_wr, sizeof(uint64_t)};
	uint8_t *slot = begin_remote(qp, IBV_WR_ATOMIC_WRITE, rkey, remote_addr);

	if (slot)
		note(of(qp), sv_put_inline(of(qp), slot, IBV_WR_ATOMIC_WRITE, &data, 1));
}

static void wr_flush(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, size_t length, uint8_t type,
		     uint8_t level)
{
	uint8_t *slot = begin_remote(qp, SV_WR_FLUSH, rkey, remote_addr);

	if (slot) {
		STORE(uint64_t, slot, SV_SQ_COMPARE_ADD, length);
		STORE(uint64_t, slot, SV_SQ_SWAP, type | level << 4);
	}
}

static void wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	uint8_t *slot = begin(qp, IBV_WR_BIND_MW);

	if (slot && mw->type != IBV_MW_TYPE_2)
		note(of(qp), sv_refuse(EINVAL, "ibv_wr_bind_mw is for memory windows of type 2; ibv_bind_mw binds those of type 1"));
	else if (slot)
		sv_put_bind(slot, mw, rkey, info);
}

/* -- what is set of the last work request */

static void wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t remote_qpn, uint32_t remote_qkey)
{
	uint8_t *slot = of(qp)->slot;

	if (!slot)
		return;
	of(qp)->lacks_destination = false;
	STORE(uint32_t, slot, SV_SQ_AH, ((struct sv_ah *)ah)->number);
	STORE(uint32_t, slot, SV_SQ_DESTINATION, remote_qpn);
	STORE(uint32_t, slot, SV_SQ_RKEY, remote_qkey);
}

static void wr_set_xrc_srqn(struct ibv_qp_ex *qp, uint32_t remote_srqn)
{
	if (!of(qp)->slot)
		return;
	of(qp)->lacks_destination = false;
	STORE(uint32_t, of(qp)->slot, SV_SQ_DESTINATION, remote_srqn);
}

static void wr_set_sge_list(struct ibv_qp_ex *qp, size_t num_sge, const struct ibv_sge *sg_list)
{
	struct sv_qp *self = of(qp);
	uint64_t length = 0;

	if (!may_set_data(self))
		return;
	note(self, sv_put_sges(self->slot + SV_SQ_SGES, sg_list, num_sge, self->sends.max_sge, &length));
	if (!self->slot)
		return;
	if (length > UINT32_MAX)
		length = UINT32_MAX; /* too long a message, as finish() will say */
	STORE(uint16_t, self->slot, SV_SQ_NUM_SGE, num_sge);
	STORE(uint32_t, self->slot, SV_SQ_LENGTH, length);
}

static void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge element = {.addr = addr, .length = length, .lkey = lkey};

	wr_set_sge_list(qp, length ? 1 : 0, &element);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t num_buf, const struct ibv_data_buf *buf_list)
{
	struct sv_qp *self = of(qp);

	if (!may_set_data(self))
		return;
	STORE(uint32_t, self->slot, SV_SQ_LENGTH, 0);
	note(self, sv_put_inline(self, self->slot, self->slot[SV_SQ_OPCODE], buf_list, num_buf));
}

static void wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length)
{
	struct ibv_data_buf data = {addr, length};

	wr_set_inline_data_list(qp, 1, &data);
}

/* wr_flush, which older headers have not, is the member behind wr_atomic_write. */
void sv_fill_building(struct sv_qp *self)
{
	struct ibv_qp_ex *ex = &self->ex;

	ex->wr_start = wr_start;
	ex->wr_complete = wr_complete;
	ex->wr_abort = wr_abort;
	ex->wr_send = wr_send;
	ex->wr_send_imm = wr_send_imm;
	ex->wr_send_inv = wr_send_inv;
	ex->wr_send_tso = wr_send_tso;
	ex->wr_local_inv = wr_local_inv;
	ex->wr_rdma_write = wr_rdma_write;
	ex->wr_rdma_write_imm = wr_rdma_write_imm;
	ex->wr_rdma_read = wr_rdma_read;
	ex->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	ex->wr_atomic_fetch_add = wr_atomic_fetch_add;
	ex->wr_atomic_write = wr_atomic_write;
	ex->wr_bind_mw = wr_bind_mw;
	ex->wr_set_ud_addr = wr_set_ud_addr;
	ex->wr_set_xrc_srqn = wr_set_xrc_srqn;
	ex->wr_set_sge = wr_set_sge;
	ex->wr_set_sge_list = wr_set_sge_list;
	ex->wr_set_inline_data = wr_set_inline_data;
	ex->wr_set_inline_data_list = wr_set_inline_data_list;
	*(&ex->wr_atomic_write + 1) = (__typeof__(ex->wr_atomic_write))(void (*)(void))wr_flush;
}
