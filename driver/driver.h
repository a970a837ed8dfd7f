/* SPDX-License-Identifier: MIT */
/* The driver's own structures. Each begins with the structure of verbs.h that programs hold a pointer to.
 *
 * No logic of the device is here: commands go to it by a socket (wire.c), work requests and completions by rings in
 * shared memory (post.c, poll.c). abi.h, which is generated, is the protocol.
 */
#ifndef SV_DRIVER_H
#define SV_DRIVER_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi.h"

#define SV_EXPORT __attribute__((visibility("default")))
#define SV_PORT 1	   /* the only port */
#define SV_WR_FLUSH 14	   /* IBV_WR_FLUSH of newer headers */
#define SV_QP_EX_WITH_FLUSH (1 << 11)

/* verbs.h hides the functions behind macros of the same name. */
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

/* -- wire.c: the connection */

/* What a handle stands for. */
enum sv_kind { SV_CQ, SV_QP, SV_SRQ, SV_MR };

/* An object that is found by its handle, which events name; a member of the object itself. */
struct sv_entry {
	struct sv_entry *next;
	enum sv_kind kind;
	uint32_t handle;
	uint32_t comp_events;  /* read by the program: as many must be acknowledged before the object goes */
	uint32_t async_events;
};

/* Up to which index the completions of a send queue have been polled, low 32 bits: the slots before it are free. */
struct sv_polled {
	_Atomic uint32_t index;
	uint8_t unused[60]; /* threads that use different queues share no cache line */
};

/* A connection to the device, shared by a context and its imports. */
struct sv_connection {
	struct sv_connection *next;
	pthread_mutex_t lock; /* one command at a time */
	int socket;
	int doorbell;
	int async_fd;
	uint8_t *control;
	uint64_t *guard; /* what tells this address space from others: guard.c */
	uint64_t sequence;
	atomic_bool dead;
	bool forked; /* it is the parent's: nothing of it may be touched */
	struct sv_connection *heir; /* where it is forked: this process's own, once it was needed */
	atomic_bool told; /* IBV_EVENT_DEVICE_FATAL was read */
	atomic_long looked; /* ms, when the socket was last asked whether the device lives */
	unsigned int references;
	pthread_mutex_t entries_lock;
	struct sv_entry **entries; /* by handle; as many places as the power of two that `places` is */
	size_t places;
	size_t entered;
	/* By the number of the send queue. It stays when the queue goes, so that a thread that polls needs no lock. */
	struct sv_polled *polled;
	struct sv_hello_response hello;
};

/* Connects to the device of SOFTVERBS_SOCKET. `purpose`: SV_PURPOSE_*. NULL with errno. */
struct sv_connection *sv_connect(uint32_t purpose);
struct sv_connection *sv_share(int socket);
/* The connection for what needs no object of the context: in a forked child one of its own. */
struct sv_connection *sv_own(struct sv_connection *connection);
void sv_disconnect(struct sv_connection *connection);

/* A command and its answer. `fds`: descriptors that must come with it. 0, or an errno. */
SV_EXPORT int sv_call_fds(struct sv_connection *connection, enum sv_command command, const void *request,
			  size_t request_size, void *response, size_t response_size, int *fds, int count, int sent_fd);
SV_EXPORT int sv_call(struct sv_connection *connection, enum sv_command command, const void *request,
		      size_t request_size, void *response, size_t response_size);

/* Says that the device is gone: every call fails from now on. */
SV_EXPORT void sv_lost(struct sv_connection *connection);
/* Looks, now and then, whether the device still lives; called where a program polls and finds nothing. */
bool sv_is_lost(struct sv_connection *connection);
/* Maps memory of the device, and closes its descriptor. NULL with errno. */
uint8_t *sv_map(int fd, size_t size);

/* -- guard.c: a page by which the device recognizes this address space */

uint64_t *sv_make_guard(void);
void sv_free_guard(uint64_t *guard);
uint64_t sv_read_guard(const uint64_t *guard);

void sv_enter(struct sv_connection *connection, struct sv_entry *entry, enum sv_kind kind, uint32_t handle);
void sv_remove(struct sv_connection *connection, struct sv_entry *entry);
/* With entries_lock held. */
struct sv_entry *sv_find(struct sv_connection *connection, enum sv_kind kind, uint64_t handle);


/* Says which queue has something new, after its tail was stored: the queue's mark, and those above it (core/queues/marks.py). */
static inline void sv_mark(struct sv_connection *connection, uint32_t mark)
{
	atomic_uchar *marks = (atomic_uchar *)(connection->control + SV_CONTROL_MARKS);

	atomic_store_explicit(marks + mark, 1, memory_order_release);
	while (mark >= SV_MARK_LINE) {
		mark = mark / SV_MARK_LINE - 1;
		atomic_store_explicit(marks + mark, 1, memory_order_release);
	}
}

/* Wakes the device if it sleeps, after something was written for it. */
static inline void sv_doorbell(struct sv_connection *connection)
{
	static const uint64_t one = 1;

	atomic_thread_fence(memory_order_seq_cst);
	if (!atomic_load_explicit((_Atomic uint32_t *)(connection->control + SV_CONTROL_AWAKE), memory_order_relaxed)) {
		ssize_t written;
		int cancelling;

		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelling); /* a queue's lock is held */
		written = write(connection->doorbell, &one, sizeof(one));
		(void)written; /* a full counter wakes the device as well */
		pthread_setcancelstate(cancelling, NULL);
	}
}

/* -- words.c: what is said to people */

/* Words for the last error of this thread; printed where SOFTVERBS_EXPLAIN=1. Sets errno, and returns `error`. */
SV_EXPORT int sv_refuse(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Says, once, that the device which the environment names cannot be reached. */
void sv_tell_unreachable(int error);
/* Says, once, which variables of the environment are not the device's, and with `softverbs run -v` what was loaded. */
void sv_introduce(const struct sv_hello_response *hello);

/* -- planned.c: faults on demand */

/* Whether the device's plan of faults has rules for a verb that the driver does by itself; `verb`: SV_ASK_*. */
static inline bool sv_is_planned(const struct sv_connection *connection, unsigned int verb)
{
	const uint8_t *asks = connection->control + SV_CONTROL_ASKS;

	return atomic_load_explicit((_Atomic uint64_t *)asks, memory_order_relaxed) >> verb & 1;
}

/* Asks whether this call is to fail: 0, or the errno, with words. `size`: entries of a queue, or 0. */
int sv_ask(struct sv_connection *connection, unsigned int verb, uint32_t handle, uint64_t size);
/* The same of a work request. `opcode`: enum ibv_wr_opcode, of sends; `size`: bytes of the message. */
int sv_ask_post(struct sv_connection *connection, unsigned int verb, uint32_t handle, uint64_t wr_id, uint32_t opcode,
		uint64_t size);

/* -- objects */

struct sv_device {
	struct ibv_device device;
	void *vendor[16]; /* where a vendor's library looks for its own mark: none */
	uint64_t guid;
};

struct sv_context {
	void *newer[16]; /* operations of newer headers: none */
	struct verbs_context verbs;
	struct sv_connection *connection;
};

struct sv_pd {
	struct ibv_pd pd;
	struct sv_pd *parent; /* a parent domain: the domain that it stands on */
	struct sv_td *td;
	atomic_uint users;    /* parent domains and imports upon it */
	bool imported;
};

struct sv_td {
	struct ibv_td td;
	atomic_uint users;
};

struct sv_mr {
	struct ibv_mr mr;
	struct sv_entry entry;
};

struct sv_dm {
	struct ibv_dm dm;
	struct sv_connection *connection;
	bool imported;
	uint64_t length;
};

struct sv_xrcd {
	struct ibv_xrcd xrcd;
	uint32_t handle;
};

struct sv_channel {
	struct ibv_comp_channel channel;
	uint32_t handle;
};

struct sv_cq {
	union {
		struct ibv_cq cq;
		struct ibv_cq_ex ex;
	};
	void *newer[8]; /* members that newer headers have at the end of struct ibv_cq_ex */
	struct sv_entry entry;
	struct sv_connection *connection;
	pthread_mutex_t lock;
	uint8_t *header; /* a page, which stays at its address when the queue is resized: it is read without `lock` */
	uint8_t *slots;
	size_t slots_size;
	uint64_t head; /* stored with `lock` held, by sv_set_head; read without it by sv_is_empty */
	uint64_t mask;
	/* start_poll to end_poll: a copy of the current completion, whose slot the device has back already. */
	_Alignas(8) uint8_t current[SV_CQ_SLOT];
	atomic_ulong poller; /* the thread that holds `lock` from start_poll to end_poll; 0: none */
	uint64_t wc_flags;
	atomic_uint idle_polls;
	pthread_mutex_t arming; /* not `lock`, which a program may hold from start_poll to end_poll */
	uint32_t armings;
	bool overwritten; /* IGNORE_OVERRUN: the device may have passed the head */
	bool locks;	  /* not SINGLE_THREADED */
};

/* One ring that the driver fills. */
struct sv_queue {
	uint8_t *slots;
	_Atomic uint64_t *tail_shared;
	_Atomic uint64_t *head_shared;
	_Atomic uint32_t *polled; /* send queue: slots before this index are free; NULL: those before the head are */
	uint64_t tail;
	uint64_t mask;
	uint32_t stride;
	uint32_t max_wr;
	uint32_t max_sge;
	uint32_t mark; /* of the byte that says that something was posted */
	pthread_mutex_t lock;
};

struct sv_qp {
	union {
		struct ibv_qp qp;
		struct ibv_qp_ex ex;
	};
	void *newer[8]; /* members that newer headers have at the end of struct ibv_qp_ex */
	struct sv_entry entry;
	struct sv_connection *connection;
	uint8_t *memory;
	size_t memory_size;
	struct sv_queue sends;
	struct sv_queue receives;
	uint32_t max_inline;
	uint32_t allowed; /* operations, one bit each */
	uint32_t max_reads; /* atomic: one thread may post while another modifies */
	bool signal_all;
	bool extended; /* made with SEND_OPS_FLAGS */
	uint64_t operations; /* which those were, IBV_QP_EX_WITH_* */
	bool opened;   /* by ibv_open_qp: an XRC target of somebody else */
	/* Between wr_start and wr_complete: */
	uint64_t new_tail;
	uint8_t *slot;	/* of the last work request; NULL where it was refused */
	bool lacks_data; /* the last work request needs a setter of its data; of its destination */
	bool lacks_destination;
	int error;
};

struct sv_srq {
	struct ibv_srq srq;
	struct sv_entry entry;
	struct sv_connection *connection;
	uint8_t *memory;
	size_t memory_size;
	uint32_t srq_num;
	struct sv_queue receives;
};

struct sv_ah {
	struct ibv_ah ah;
	uint32_t number; /* what a work request names it by */
};

static inline struct sv_connection *sv_of(const struct ibv_context *context)
{
	const char *base = (const char *)context - offsetof(struct sv_context, verbs.context);

	return ((const struct sv_context *)base)->connection;
}

/* -- what the files offer each other */

void sv_fill_operations(struct verbs_context *verbs);
const char *sv_wr_opcode_str(enum ibv_wr_opcode opcode);
uint32_t sv_pd_handle(const struct ibv_pd *pd);

/* Keeps others from polling. A thread within a batch (ibv_start_poll(3)) does so already. */
void sv_lock_cq(struct sv_cq *self);
void sv_unlock_cq(struct sv_cq *self);
static inline void sv_set_head(struct sv_cq *cq, uint64_t head)
{
	__atomic_store_n(&cq->head, head, __ATOMIC_RELEASE);
}

int sv_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc);
int sv_req_notify_cq(struct ibv_cq *cq, int solicited_only);
void sv_fill_polling(struct sv_cq *self);
struct ibv_cq_ex *sv_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
int sv_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);
/* Waits until the program has acknowledged every event of an object that it has read. */
void sv_wait_acknowledged(struct sv_connection *connection, struct sv_entry *entry, pthread_mutex_t *lock,
			  pthread_cond_t *condition, const uint32_t *comp, const uint32_t *async);

/* A queue upon its memory: `rings` names the send queue or the receive queue. */
void sv_queue_open(struct sv_queue *queue, uint8_t *memory, const struct sv_rings *rings, bool sends, uint32_t max_wr,
		   uint32_t max_sge);
int sv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int sv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int sv_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int sv_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
/* What building a work request piece by piece shares with posting it whole. */
int sv_check_post(struct sv_qp *self, unsigned int opcode, unsigned int flags, uint64_t tail);
int sv_check_length(unsigned int opcode, unsigned int elements, uint64_t length);
int sv_put_inline(struct sv_qp *self, uint8_t *slot, unsigned int opcode, const struct ibv_data_buf *list,
		  size_t count);
int sv_put_sges(uint8_t *at, const struct ibv_sge *list, size_t count, uint32_t most, uint64_t *length);
void sv_put_head(struct sv_qp *self, uint8_t *slot, uint64_t wr_id, unsigned int opcode, unsigned int flags);
void sv_put_bind(uint8_t *slot, const struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info);
void sv_publish(struct sv_connection *connection, struct sv_queue *queue);
void sv_fill_building(struct sv_qp *self);

struct ibv_qp *sv_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
struct ibv_qp *sv_open_qp(struct ibv_context *context, struct ibv_qp_open_attr *attr);
struct ibv_srq *sv_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr);
int sv_get_srq_num(struct ibv_srq *srq, uint32_t *number);
struct ibv_xrcd *sv_open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attr);
int sv_close_xrcd(struct ibv_xrcd *xrcd);
void sv_from_ah_attr(struct sv_ah_attr *to, const struct ibv_ah_attr *from);
SV_EXPORT void sv_to_ah_attr(struct ibv_ah_attr *to, const struct sv_ah_attr *from);
SV_EXPORT void sv_to_qp_attr(struct ibv_qp_attr *to, const struct sv_qp_attr *from);

struct ibv_mw *sv_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int sv_dealloc_mw(struct ibv_mw *mw);
struct ibv_mr *sv_alloc_null_mr(struct ibv_pd *pd);
int sv_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *list,
		 uint32_t count);
struct ibv_dm *sv_alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr);
int sv_free_dm(struct ibv_dm *dm);
struct ibv_mr *sv_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length, unsigned int access);
struct ibv_td *sv_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr);
int sv_dealloc_td(struct ibv_td *td);
struct ibv_pd *sv_alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr);

/* A completion counter. rdma-core's older headers do not know its type. NULL with errno. */
struct ibv_comp_cntr;
SV_EXPORT struct ibv_comp_cntr *sv_create_comp_cntr(struct ibv_context *context,
						    const struct sv_create_comp_cntr_request *request);

int sv_query_port_ex(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr, size_t size);
int sv_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
		       struct ibv_device_attr_ex *attr, size_t size);
int sv_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values);

#endif
