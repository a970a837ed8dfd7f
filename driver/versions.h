/* SPDX-License-Identifier: MIT */
/* Binding a function, under a name, to a version node that is not the name's default one. */
#ifndef SV_VERSIONS_H
#define SV_VERSIONS_H

/* `function` is of the same file; `alias` is a name of its own for the assembler. */
#define BIND(function, name, node, alias)                                                                              \
	__asm__(".globl " #alias "\n.set " #alias ", " #function "\n.symver " #alias ", " #name "@" #node)
/* The same, as the default version of the name: for functions that older headers do not declare, and newer ones declare with
 * types that older ones have not.
 */
#define BIND_DEFAULT(function, name, node) BIND(function, name, @node, sv_default_##name)
#define PRIVATE(function, name)                                                                                        \
	BIND(function, name, IBVERBS_PRIVATE_34, sv34_##name);                                                         \
	BIND(function, name, IBVERBS_PRIVATE_57, sv57_##name);                                                         \
	BIND(function, name, IBVERBS_PRIVATE_59, sv59_##name);                                                         \
	BIND(function, name, IBVERBS_PRIVATE_64, sv64_##name);                                                         \
	BIND(function, name, IBVERBS_PRIVATE_65, sv65_##name)

#endif
