// SPDX-License-Identifier: MIT
/* Asks for devices, as a program may that does not know of ours.
 *
 *	devices            lists them, twice, as libraries above verbs do
 *	devices open       opens the first one as well
 *	devices names      by dlopen(3), under each name of each library: one library, whatever it is called
 *	devices modules M… by modules that were linked with a libibverbs of their own
 *	devices refused    calls that are refused
 */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

static int list(void)
{
	int count = -1;
	struct ibv_device **list = ibv_get_device_list(&count);

	printf("%d devices\n", count);
	if (list)
		ibv_free_device_list(list);
	return count;
}

static struct ibv_context *open_first(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;

	puts(context ? "open" : "not open");
	return context;
}

static void by_names(void)
{
	static const char *const names[][3] = {{"libibverbs.so", "libibverbs.so.1", "ibv_get_device_list"},
					       {"librdmacm.so", "librdmacm.so.1", "rdma_create_id"},
					       {"libefa.so", "libefa.so.1", "efadv_query_device"}};

	for (size_t i = 0; i < 3; i++) {
		void *one = dlopen(names[i][0], RTLD_NOW | RTLD_LOCAL), *other = dlopen(names[i][1], RTLD_NOW | RTLD_LOCAL);
		struct link_map *map;

		if (!one || !other || dlinfo(other, RTLD_DI_LINKMAP, &map)) {
			printf("%s: %s\n", names[i][0], dlerror());
			continue;
		}
		printf("%s: %s, %s\n", names[i][0], map->l_name,
		       dlsym(one, names[i][2]) && dlsym(one, names[i][2]) == dlsym(other, names[i][2]) ? "the same" : "another");
		if (i == 0)
			printf("%s\n", dlvsym(one, names[i][2], "IBVERBS_1.1") == dlsym(one, names[i][2]) ? "versioned" : "not");
	}
}

static void by_modules(int count, char **modules)
{
	for (int i = 0; i < count; i++) {
		void *module = dlopen(modules[i], RTLD_NOW | RTLD_LOCAL);
		int (*call)(void);

		if (!module) {
			puts(dlerror());
			continue;
		}
		*(void **)&call = dlsym(module, "devices_of_module");
		printf("%d devices\n", call());
	}
}

static void be_refused(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);

	for (int i = 0; i < 5; i++)
		ibv_create_cq(context, -1, NULL, NULL, 0);
	ibv_reg_dmabuf_mr(pd, 0, 1, 0, 3, 0);
	for (int i = 0; i < 3; i++)
		ibv_create_cq(context, -2, NULL, NULL, 0);
}

int main(int count, char **words)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (count > 1 && !strcmp(words[1], "names"))
		by_names();
	else if (count > 1 && !strcmp(words[1], "modules"))
		by_modules(count - 2, words + 2);
	else if (count > 1 && !strcmp(words[1], "refused"))
		be_refused();
	else {
		list();
		list();
		if (count > 1 && !open_first())
			return 1;
	}
	return 0;
}
