//! etcd's leases for Kubernetes.

pub mod writer_lease;
