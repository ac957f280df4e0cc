// Package rxe is the step type "rxe": it makes an RDMA device in software (soft RoCE) on an interface of the sandbox.
// Sources: rdma-link(8), rxe(7); rxe_newlink in drivers/infiniband/sw/rxe/rxe.c.
package rxe
