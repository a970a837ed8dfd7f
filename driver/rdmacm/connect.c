// SPDX-License-Identifier: MIT
/* Connections: asked for, accepted, refused, ended (rdma_connect(3) and the rest). */
#include "rdmacm.h"

/* What an identifier's queue pair, or the program, says of the connection. 0, or an errno. */
static int fill(struct sv_cm_id *self, struct sv_cm_param *to, const struct rdma_conn_param *from)
{
	const struct rdma_cm_id *id = &self->id;
	size_t length = from && from->private_data ? from->private_data_len : 0;

	if (self->connect_length + length > UINT8_MAX)
		return sv_refuse(EINVAL, "%zu bytes of private data", self->connect_length + length);
	to->responder_resources = from ? from->responder_resources : SV_ANY_DEPTH;
	to->initiator_depth = from ? from->initiator_depth : SV_ANY_DEPTH;
	to->flow_control = from ? from->flow_control : 0;
	to->retry_count = from ? from->retry_count : 7;
	to->rnr_retry_count = from ? from->rnr_retry_count : 7;
	to->qp_num = id->qp ? id->qp->qp_num : from ? from->qp_num : 0;
	to->srq = id->qp ? !!id->qp->srq : from ? from->srq : 0;
	if (self->connect_length)
		memcpy(to->private_data, self->connect, self->connect_length);
	if (length)
		memcpy(to->private_data + self->connect_length, from->private_data, length);
	to->private_data_len = self->connect_length + length;
	return 0;
}

SV_EXPORT int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *conn_param)
{
	struct sv_cm_id *self = sv_cm(id);
	struct sv_cm_connect_request request = {.id = self->handle};
	int error = fill(self, &request.param, conn_param);

	request.param.vendor_id = self->local_ece.vendor_id;
	request.param.options = self->local_ece.options;
	if (error || SV_CM_CALL(self, SV_CM_CONNECT, request))
		return -1;
	self->connect_length = 0;
	return sv_cm_complete(self);
}

/* Moves the queue pair of a connection to RTS, as far as both sides have agreed. */
static int prepare(struct sv_cm_id *self, const struct sv_cm_param *param)
{
	struct sv_cm_negotiate_request request = {.id = self->handle,
						  .responder_resources = param->responder_resources,
						  .initiator_depth = param->initiator_depth};

	return SV_CM_CALL(self, SV_CM_NEGOTIATE, request) || sv_cm_make_ready(self) ? -1 : 0;
}

SV_EXPORT int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *conn_param)
{
	struct sv_cm_id *self = sv_cm(id);
	struct sv_cm_accept_request request = {.id = self->handle};
	bool datagrams = id->qp_type == IBV_QPT_UD;

	if (fill(self, &request.param, conn_param))
		return -1;
	request.param.vendor_id = self->remote_ece.vendor_id; /* the answer names the vendor that the request names */
	request.param.options = self->local_ece.options;
	if (!datagrams && prepare(self, &request.param))
		return -1;
	if (SV_CM_CALL(self, SV_CM_ACCEPT, request)) {
		int error = errno;

		if (!datagrams)
			sv_cm_fail_qp(self);
		return sv_cm_result(error);
	}
	if (!datagrams)
		return sv_cm_complete(self);
	if (self->sync && id->event) {
		rdma_ack_cm_event(id->event);
		id->event = NULL;
	}
	return 0;
}

SV_EXPORT int rdma_establish(struct rdma_cm_id *id)
{
	struct sv_cm_id *self = sv_cm(id);
	struct sv_cm_establish_request request = {.id = self->handle};

	if (id->qp)
		return sv_cm_result(sv_refuse(EINVAL, "rdma_establish: the identifier has a queue pair of its own"));
	return SV_CM_CALL(self, SV_CM_ESTABLISH, request);
}

static int reject(struct rdma_cm_id *id, const void *private_data, uint8_t length, uint32_t reason)
{
	struct sv_cm_id *self = sv_cm(id);
	struct sv_cm_reject_request request = {.id = self->handle, .reason = reason};

	if (private_data && length) {
		memcpy(request.private_data, private_data, length);
		request.private_data_len = length;
	}
	return SV_CM_CALL(self, SV_CM_REJECT, request);
}

SV_EXPORT int rdma_reject(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len)
{
	return reject(id, private_data, private_data_len, 0);
}

SV_EXPORT int rdma_reject_ece(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len)
{
	return reject(id, private_data, private_data_len, 35); /* vendor options are not supported (IBA table 105) */
}

SV_EXPORT int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event)
{
	struct sv_cm_id *self = sv_cm(id);
	struct sv_cm_notify_request request = {.id = self->handle, .event = event};

	return SV_CM_CALL(self, SV_CM_NOTIFY, request);
}

SV_EXPORT int rdma_disconnect(struct rdma_cm_id *id)
{
	struct sv_cm_id *self = sv_cm(id);
	struct sv_cm_disconnect_request request = {.id = self->handle};

	if (!id->verbs)
		return sv_cm_result(sv_refuse(EINVAL, "rdma_disconnect: the identifier is bound to no device"));
	if (sv_cm_fail_qp(self) || SV_CM_CALL(self, SV_CM_DISCONNECT, request))
		return -1;
	return sv_cm_complete(self);
}

/* -- options of a vendor, which this device has not, but carries for others */

/* Vendor 0 is what ibv_query_ece(3) says here, and stands for none; librdmacm refuses it. */
SV_EXPORT int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	if (!id || id->qp || !ece || ece->comp_mask)
		return sv_cm_result(sv_refuse(EINVAL, "rdma_set_local_ece: options, and no queue pair, are needed"));
	sv_cm(id)->local_ece = *ece;
	return 0;
}

SV_EXPORT int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	if (!id || id->qp || !ece)
		return sv_cm_result(sv_refuse(EINVAL, "rdma_get_remote_ece: an identifier without queue pair is needed"));
	*ece = sv_cm(id)->remote_ece;
	ece->comp_mask = 0;
	return 0;
}
