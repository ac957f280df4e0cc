// Package rdma is the step type "rdma": it gives containers the RDMA device of a function, without its network interface.
// Sources: Documentation/infiniband/user_verbs.rst, rdma-system(8).
package rdma
