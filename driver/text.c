// SPDX-License-Identifier: MIT
/* Names and numbers for people: states, events, statuses, rates (ibv_rate_to_mult(3), ibv_event_type_str(3)). */
#include "driver.h"
#include "versions.h"

#define COUNT(table) ((int)(sizeof(table) / sizeof(*(table))))

/* The text of `value` in a table, `other` where it has none. */
static const char *text_of(const char *const *table, int count, int value, const char *other)
{
	return value >= 0 && value < count && table[value] ? table[value] : other;
}

SV_EXPORT const char *ibv_node_type_str(enum ibv_node_type node_type)
{
	static const char *const names[] = {
		[IBV_NODE_CA] = "channel adapter",
		[IBV_NODE_SWITCH] = "switch",
		[IBV_NODE_ROUTER] = "router",
		[IBV_NODE_RNIC] = "iWARP adapter",
		[IBV_NODE_USNIC] = "usNIC",
		[IBV_NODE_USNIC_UDP] = "usNIC over UDP",
		[IBV_NODE_UNSPECIFIED] = "unspecified",
	};

	return text_of(names, COUNT(names), node_type, "unknown");
}

SV_EXPORT const char *ibv_port_state_str(enum ibv_port_state port_state)
{
	static const char *const names[] = {
		[IBV_PORT_NOP] = "no change",
		[IBV_PORT_DOWN] = "down",
		[IBV_PORT_INIT] = "initializing",
		[IBV_PORT_ARMED] = "armed",
		[IBV_PORT_ACTIVE] = "active",
		[IBV_PORT_ACTIVE_DEFER] = "active, deferred",
	};

	return text_of(names, COUNT(names), port_state, "unknown");
}

SV_EXPORT const char *ibv_event_type_str(enum ibv_event_type event)
{
	static const char *const names[] = {
		[IBV_EVENT_CQ_ERR] = "completion queue error",
		[IBV_EVENT_QP_FATAL] = "fatal error of a queue pair",
		[IBV_EVENT_QP_REQ_ERR] = "queue pair got an invalid request",
		[IBV_EVENT_QP_ACCESS_ERR] = "queue pair got a request without the right of access",
		[IBV_EVENT_COMM_EST] = "communication established",
		[IBV_EVENT_SQ_DRAINED] = "send queue is drained",
		[IBV_EVENT_PATH_MIG] = "connection moved to its alternate path",
		[IBV_EVENT_PATH_MIG_ERR] = "connection could not move to its alternate path",
		[IBV_EVENT_DEVICE_FATAL] = "fatal error of the device",
		[IBV_EVENT_PORT_ACTIVE] = "port became active",
		[IBV_EVENT_PORT_ERR] = "port is down",
		[IBV_EVENT_LID_CHANGE] = "LID changed",
		[IBV_EVENT_PKEY_CHANGE] = "P_Key table changed",
		[IBV_EVENT_SM_CHANGE] = "subnet manager changed",
		[IBV_EVENT_SRQ_ERR] = "fatal error of a shared receive queue",
		[IBV_EVENT_SRQ_LIMIT_REACHED] = "shared receive queue is below its limit",
		[IBV_EVENT_QP_LAST_WQE_REACHED] = "queue pair takes no more receives of its shared queue",
		[IBV_EVENT_CLIENT_REREGISTER] = "subnet manager wants registrations anew",
		[IBV_EVENT_GID_CHANGE] = "GID table changed",
		[IBV_EVENT_WQ_FATAL] = "fatal error of a work queue",
	};

	return text_of(names, COUNT(names), event, "unknown");
}

SV_EXPORT const char *ibv_wc_status_str(enum ibv_wc_status status)
{
	static const char *const names[] = {
		[IBV_WC_SUCCESS] = "success",
		[IBV_WC_LOC_LEN_ERR] = "local length error",
		[IBV_WC_LOC_QP_OP_ERR] = "local QP op error",
		[IBV_WC_LOC_EEC_OP_ERR] = "local EEC op error",
		[IBV_WC_LOC_PROT_ERR] = "local protection error",
		[IBV_WC_WR_FLUSH_ERR] = "WR flush error",
		[IBV_WC_MW_BIND_ERR] = "memory window bind error",
		[IBV_WC_BAD_RESP_ERR] = "bad response error",
		[IBV_WC_LOC_ACCESS_ERR] = "local access error",
		[IBV_WC_REM_INV_REQ_ERR] = "remote invalid request error",
		[IBV_WC_REM_ACCESS_ERR] = "remote access error",
		[IBV_WC_REM_OP_ERR] = "remote op error",
		[IBV_WC_RETRY_EXC_ERR] = "retry exceeded error",
		[IBV_WC_RNR_RETRY_EXC_ERR] = "RNR retry exceeded",
		[IBV_WC_LOC_RDD_VIOL_ERR] = "local RDD violation error",
		[IBV_WC_REM_INV_RD_REQ_ERR] = "remote invalid RD request error",
		[IBV_WC_REM_ABORT_ERR] = "remote abort error",
		[IBV_WC_INV_EECN_ERR] = "invalid EEC number",
		[IBV_WC_INV_EEC_STATE_ERR] = "invalid EEC state",
		[IBV_WC_FATAL_ERR] = "fatal error",
		[IBV_WC_RESP_TIMEOUT_ERR] = "response timeout error",
		[IBV_WC_GENERAL_ERR] = "general error",
		[IBV_WC_TM_ERR] = "tag matching error",
		[IBV_WC_TM_RNDV_INCOMPLETE] = "tagged message whose rendezvous is incomplete",
	};

	return text_of(names, COUNT(names), status, "unknown");
}

/* The name of an operation without its prefix; rdma-core 64 and later print it. */
const char *sv_wr_opcode_str(enum ibv_wr_opcode opcode)
{
	static const char *const names[] = {
		[IBV_WR_RDMA_WRITE] = "RDMA_WRITE",
		[IBV_WR_RDMA_WRITE_WITH_IMM] = "RDMA_WRITE_WITH_IMM",
		[IBV_WR_SEND] = "SEND",
		[IBV_WR_SEND_WITH_IMM] = "SEND_WITH_IMM",
		[IBV_WR_RDMA_READ] = "RDMA_READ",
		[IBV_WR_ATOMIC_CMP_AND_SWP] = "ATOMIC_CMP_AND_SWP",
		[IBV_WR_ATOMIC_FETCH_AND_ADD] = "ATOMIC_FETCH_AND_ADD",
		[IBV_WR_LOCAL_INV] = "LOCAL_INV",
		[IBV_WR_BIND_MW] = "BIND_MW",
		[IBV_WR_SEND_WITH_INV] = "SEND_WITH_INV",
		[IBV_WR_TSO] = "TSO",
		[SV_WR_FLUSH] = "FLUSH",
		[IBV_WR_ATOMIC_WRITE] = "ATOMIC_WRITE",
	};

	return text_of(names, COUNT(names), opcode, "unknown");
}

__attribute__((used)) static const char *wr_opcode_str(enum ibv_wr_opcode opcode)
{
	return sv_wr_opcode_str(opcode);
}
PRIVATE(wr_opcode_str, ibv_wr_opcode_str);

/* -- rates (IBA 9.11.1): the encoding, the multiple of 2.5 Gbit/s, Mbit/s */

static const struct {
	enum ibv_rate rate;
	int mult;
	int mbps;
} rates[] = {
	{IBV_RATE_2_5_GBPS, 1, 2500},	   {IBV_RATE_5_GBPS, 2, 5000},	     {IBV_RATE_10_GBPS, 4, 10000},
	{IBV_RATE_20_GBPS, 8, 20000},	   {IBV_RATE_30_GBPS, 12, 30000},    {IBV_RATE_40_GBPS, 16, 40000},
	{IBV_RATE_60_GBPS, 24, 60000},	   {IBV_RATE_80_GBPS, 32, 80000},    {IBV_RATE_120_GBPS, 48, 120000},
	{IBV_RATE_14_GBPS, 6, 14062},	   {IBV_RATE_56_GBPS, 22, 56250},    {IBV_RATE_112_GBPS, 45, 112500},
	{IBV_RATE_168_GBPS, 67, 168750},   {IBV_RATE_25_GBPS, 10, 25781},    {IBV_RATE_100_GBPS, 41, 103125},
	{IBV_RATE_200_GBPS, 82, 206250},   {IBV_RATE_300_GBPS, 124, 309375}, {IBV_RATE_28_GBPS, 11, 28125},
	{IBV_RATE_50_GBPS, 20, 53125},	   {IBV_RATE_400_GBPS, 160, 425000}, {IBV_RATE_600_GBPS, 240, 637500},
	{IBV_RATE_800_GBPS, 320, 850000}, {IBV_RATE_1200_GBPS, 480, 1275000},
};

SV_EXPORT int ibv_rate_to_mult(enum ibv_rate rate)
{
	for (int i = 0; i < COUNT(rates); i++)
		if (rates[i].rate == rate)
			return rates[i].mult;
	return -1;
}

SV_EXPORT enum ibv_rate mult_to_ibv_rate(int mult)
{
	for (int i = 0; i < COUNT(rates); i++)
		if (rates[i].mult == mult)
			return rates[i].rate;
	return IBV_RATE_MAX;
}

SV_EXPORT int ibv_rate_to_mbps(enum ibv_rate rate)
{
	for (int i = 0; i < COUNT(rates); i++)
		if (rates[i].rate == rate)
			return rates[i].mbps;
	return -1;
}

SV_EXPORT enum ibv_rate mbps_to_ibv_rate(int mbps)
{
	for (int i = 0; i < COUNT(rates); i++)
		if (rates[i].mbps == mbps)
			return rates[i].rate;
	return IBV_RATE_MAX;
}
